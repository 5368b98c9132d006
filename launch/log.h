// Messages to standard error, with time, rank and level.
#pragma once

#include <string_view>

#include "launch/config.h"

namespace rollcast {

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError };

/// Opens the log of this process; `who` stands in every line ("rank 2", "trainer"). Throws Error
/// when the file cannot be opened. Before the first call Log writes at level info, without a name.
void OpenLog(const LogSettings& settings, std::string_view who);
/// Any thread. One line a call: line breaks and other control characters are escaped.
void Log(LogLevel level, std::string_view message);

inline void LogInfo(std::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarn(std::string_view message) { Log(LogLevel::kWarn, message); }
inline void LogError(std::string_view message) { Log(LogLevel::kError, message); }

}  // namespace rollcast
