#include "launch/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "kernels/check.h"
#include "launch/output_path.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

/// On a terminal a log line first wipes the progress line (launch/progress.h) that may stand there.
std::string Pattern(std::string_view who, bool terminal) {
  std::string pattern = terminal ? "\r\x1b[K" : "";
  pattern += "%H:%M:%S.%e ";
  if (!who.empty()) pattern += StrCat("[", who, "] ");
  return pattern + "%l: %v";
}

}  // namespace

void OpenLog(const LogSettings& settings, std::string_view who) {
  auto console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  console->set_pattern(Pattern(who, isatty(STDERR_FILENO)));
  auto logger = std::make_shared<spdlog::logger>("rollcast", console);
  if (!settings.file.empty()) {
    RequireName(settings.file);
    try {
      auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(settings.file);
      file->set_pattern("%Y-%m-%d " + Pattern(who, false));
      logger->sinks().push_back(std::move(file));
    } catch (const spdlog::spdlog_ex& e) {
      throw Error(StrCat("log.file ", settings.file, ": cannot be opened: ", e.what()));
    }
  }
  logger->set_level(spdlog::level::from_str(settings.level));
  // A job that is killed must not lose its last lines.
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

void Log(LogLevel level, std::string_view message) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::trace, spdlog::level::debug,
                                                   spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};
  spdlog::default_logger_raw()->log(kLevels[static_cast<int>(level)], OneLine(message));
}

}  // namespace rollcast
