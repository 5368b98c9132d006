// A subcommand as data: its options, its help and what it runs. One file launch/<name>_cli.cc a
// subcommand; launch/main.cc lists them; only launch/command_line.cc sees the option parser.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launch/config.h"

namespace rollcast {

/// Where the value of an option goes. `bool` is a flag without a value; a vector takes one value
/// each time the option is given.
using OptionRef =
    std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::filesystem::path*,
                 std::optional<uint64_t>*, std::vector<std::string>*>;

struct CommandOption {
  std::string names;  // "--input", or "-c,--config"; a name without dashes is positional
  std::string help;
  OptionRef value;
  bool required = false;
  std::string config_key;  // when set, the value goes to this configuration key, not to `value`
};

inline CommandOption Required(std::string names, OptionRef value, std::string help) {
  return {std::move(names), std::move(help), value, true, {}};
}
inline CommandOption Optional(std::string names, OptionRef value, std::string help) {
  return {std::move(names), std::move(help), value, false, {}};
}
/// A short form of `--set key=value`; its help is that of the key. A flag, without a value, where
/// the key is true or false.
inline CommandOption ForKey(std::string names, std::string key) {
  return {std::move(names), {}, {}, false, std::move(key)};
}

/// A configuration key without which the command cannot run.
struct NeededKey {
  std::string key;
  bool may_be_empty = false;  // but it must be given all the same
};

struct Command {
  std::string name;
  std::string summary;  // one line, for the list of commands
  std::string details;  // what --help says beside the options
  std::vector<CommandOption> options;
  bool on_ranks = false;      // mpirun may start it on more than one
  bool takes_config = false;  // adds -c, --set, --print-config, --help-config
  Config defaults = {};       // what the configuration is read over
  std::vector<NeededKey> needs = {};
  std::function<int(const Config& config)> run;  // returns the exit status
};

/// Exit statuses beside 0 and those that a command itself returns.
constexpr int kExitFailed = 1;  // an Error: a fault of the input or of the world around
constexpr int kExitUsage = 2;   // a command line that cannot be understood
constexpr int kExitBug = 70;    // a CheckFailure or an unforeseen exception

/// Parses the command line, reads the configuration and runs one of `commands`. Never throws: every
/// failure is one line on standard error, "rollcast: ...", and a status from above.
int RunCommandLine(const std::vector<Command>& commands, int argc, const char* const* argv);

}  // namespace rollcast
