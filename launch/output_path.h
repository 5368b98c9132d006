// Whether an output file can be made, found out before anything slow is done for it.
#pragma once

#include <filesystem>

#include "rollout/writer_lock.h"

namespace rollcast {

/// Throws Error when `path` is "-", which stands for the standard output.
void RequireName(const std::filesystem::path& path);

/// Creates the missing folders above `path`. Throws Error when `path` is a folder or "-", or a file
/// could not be created there.
void PrepareFolder(const std::filesystem::path& path);

/// The same for an output. Throws Error also when it exists and `overwrite` is false or
/// it is not an earlier output of `kind` (RequireReplaceable), is being written by another job, or
/// is the file `input` that is still to be read.
void PrepareOutput(const std::filesystem::path& path, bool overwrite,
                   const std::filesystem::path& input = {}, const OutputKind& kind = kHdf5Output);

}  // namespace rollcast
