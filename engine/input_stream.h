// Opening what a user names as an input.
#pragma once

#include <filesystem>
#include <fstream>

namespace rollcast {

/// `path` for reading, byte by byte; "-" is the standard input. Throws Error naming the path and
/// the system's reason, also for a folder.
std::ifstream OpenInput(const std::filesystem::path& path);

}  // namespace rollcast
