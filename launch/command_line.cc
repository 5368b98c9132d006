#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <set>
#include <sstream>

#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "launch/command.h"
#include "launch/runtime.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

constexpr const char* kPrecedence =
    "An option of its own wins over --set, wherever they stand, and --set over the file of -c; of "
    "the\nsame option or key given twice, the last one counts.";

/// What all commands that take a configuration have in common.
struct ConfigFlags {
  std::string file;
  std::vector<std::string> sets;
  std::vector<Setting> key_options;  // of options made by ForKey; they win over --set
  bool print = false;
  bool help = false;
};

/// "0 = greedy (a number of at least 0; default 1.0)", from the list of fields.
std::string KeyHelp(const std::string& key, Config defaults) {
  const FieldList list = ListFields(defaults);
  const Field* field = list.Find(key);
  RC_CHECK(field != nullptr, key);
  return StrCat(field->help, " (", Describe(*field), "; default ", ToToml(field->value), ")");
}

bool IsFlag(const std::string& key) {
  Config defaults;
  const FieldList list = ListFields(defaults);
  const Field* field = list.Find(key);
  return field != nullptr && std::holds_alternative<bool*>(field->value);
}

/// The option parser itself takes "-1" for an unsigned number, and the nearest number of the type
/// for one that is too large.
template <class T>
T ParseNumber(const std::string& text, const std::string& name) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  bool good = error == std::errc() && stop == end;
  std::string expected = "a number";
  if constexpr (std::is_floating_point_v<T>)
    good = good && std::isfinite(value);
  else
    expected = StrCat("an integer from ", std::numeric_limits<T>::min(), " to ",
                      std::numeric_limits<T>::max());
  if (!good) throw CLI::ValidationError(name, StrCat("expected ", expected, ", got ", text));
  return value;
}

CLI::Option* AddOption(CLI::App& app, const CommandOption& option) {
  return std::visit(
      [&](auto* target) -> CLI::Option* {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
          return app.add_flag(option.names, *target, option.help);
        } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
          return app.add_option_function<std::string>(
              option.names, [target](const std::string& text) { *target = text; }, option.help);
        } else if constexpr (std::is_arithmetic_v<T> ||
                             std::is_same_v<T, std::optional<uint64_t>>) {
          using Number = std::conditional_t<std::is_arithmetic_v<T>, T, uint64_t>;
          CLI::Option* added = app.add_option_function<std::string>(
              option.names,
              [target, name = option.names](const std::string& text) {
                *target = ParseNumber<Number>(text, name);
              },
              option.help);
          if constexpr (std::is_arithmetic_v<T>) added->default_str(StrCat(*target));
          return added->type_name(std::is_floating_point_v<Number> ? "FLOAT" : "INT");
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return app.add_option(option.names, *target, option.help)->allow_extra_args(false);
        } else {
          return app.add_option(option.names, *target, option.help);
        }
      },
      option.value);
}

void AddCommand(CLI::App& app, const Command& command, ConfigFlags& flags) {
  CLI::App* sub = app.add_subcommand(command.name, command.summary);
  std::string footer = command.details;
  if (command.takes_config) footer += StrCat(footer.empty() ? "" : "\n\n", kPrecedence);
  if (!footer.empty()) sub->footer("\n" + footer);
  for (const CommandOption& option : command.options) {
    if (option.config_key.empty()) {
      CLI::Option* added = AddOption(*sub, option);
      if (option.required) added->required();
    } else {
      const std::string help = KeyHelp(option.config_key, command.defaults);
      const std::string origin = option.names.substr(option.names.rfind(',') + 1);
      auto set = [&flags, key = option.config_key, origin](const std::string& value) {
        flags.key_options.emplace_back(key + "=" + value, origin);
      };
      if (IsFlag(option.config_key))
        sub->add_flag_callback(
            option.names, [set] { set("true"); }, help);
      else
        sub->add_option_function<std::string>(option.names, set, help)->take_last();
    }
  }
  if (!command.takes_config) return;
  sub->add_option("-c,--config", flags.file, "TOML configuration file; - = standard input");
  sub->add_option("--set", flags.sets, "table.key=value over the file, as often as wanted")
      ->allow_extra_args(false);
  sub->add_flag("--print-config", flags.print, "print the resolved configuration and exit");
  sub->add_flag("--help-config", flags.help,
                "print all configuration keys with meaning, limits and default, and exit");
}

/// The options that set `key`, for a message: " or with --model"; empty when there is none.
std::string FlagFor(const Command& command, const std::string& key) {
  for (const CommandOption& option : command.options)
    if (option.config_key == key) return StrCat(" or with ", option.names);
  return "";
}

/// The same text on every rank is printed by one; returns the exit status.
int PrintOnce(const std::string& text) {
  if (IsFirstOfItsCommandLine()) std::cout << text;
  return std::cout.flush() ? 0 : kExitFailed;
}

int Run(const Command& command, const ConfigFlags& flags) {
  if (flags.help) return PrintOnce(HelpConfig(command.defaults));
  Config config;
  // Between the file and --set.
  constexpr const char* kOps = "ROLLCAST_OPS";
  const char* ops = std::getenv(kOps);
  std::vector<Setting> sets;
  for (const auto& [op, kernel] : ParseOps(ops == nullptr ? "" : ops, kOps))
    sets.emplace_back(StrCat("kernels.", op, "=", kernel), kOps);
  for (const std::string& set : flags.sets) sets.emplace_back(set);
  sets.insert(sets.end(), flags.key_options.begin(), flags.key_options.end());
  std::set<std::string> given;
  if (command.takes_config) config = LoadConfig(flags.file, sets, command.defaults, &given);
  if (flags.print) return PrintOnce(ToToml(config));
  const FieldList list = ListFields(config);
  for (const auto& [key, may_be_empty] : command.needs) {
    const Field* field = list.Find(key);
    RC_CHECK(field != nullptr, key);
    if (may_be_empty ? !given.contains(key) : std::get<std::string*>(field->value)->empty())
      throw Error(StrCat(command.name, ": ", key,
                         " is not set: give it in the configuration file, "
                         "with --set ",
                         key, "=...", FlagFor(command, key),
                         may_be_empty ? "; an empty text stands for none" : ""));
  }
  if (!command.on_ranks) RequireOneProcess(command.name);
  return command.run(config);
}

int Fail(int status, const std::string& message) {
  std::cerr << "rollcast: " << OneLine(message) << std::endl;
  return status;
}

}  // namespace

int RunCommandLine(const std::vector<Command>& commands, int argc, const char* const* argv) {
  CLI::App app("Rollouts for policy-gradient training of language models", "rollcast");
  app.set_version_flag("--version", "rollcast " ROLLCAST_VERSION);
  app.require_subcommand(1);
  ConfigFlags flags;
  try {
    for (const Command& command : commands) AddCommand(app, command, flags);
    if (const std::string first = argc > 1 ? argv[1] : ""; !first.empty() && first.front() != '-') {
      std::string names;
      bool known = false;
      for (const Command& command : commands) {
        names += StrCat(names.empty() ? "" : ", ", command.name);
        known |= command.name == first;
      }
      if (!known) return Fail(kExitUsage, StrCat("no command \"", first, "\"; there are ", names));
    }
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) {  // --help, --version
        std::ostringstream text;
        app.exit(e, text, text);
        return PrintOnce(text.str());
      }
      const auto chosen = app.get_subcommands();
      const std::string name = chosen.empty() ? "" : chosen.front()->get_name() + ": ";
      return Fail(kExitUsage, StrCat(name, e.what(), " (--help lists what there is)"));
    }
    const std::string name = app.get_subcommands().front()->get_name();
    for (const Command& command : commands)
      if (command.name == name) return Run(command, flags);
    throw CheckFailure("no command " + name);
  } catch (const Error& e) {
    return Fail(kExitFailed, e.what());
  } catch (const CheckFailure& e) {
    return Fail(kExitBug, StrCat("this is a bug in rollcast: ", e.what()));
  } catch (const std::filesystem::filesystem_error& e) {
    return Fail(kExitFailed, e.what());
  } catch (const std::bad_alloc&) {
    return Fail(kExitFailed, "out of memory");
  } catch (const std::exception& e) {
    return Fail(kExitBug, StrCat("this is a bug in rollcast: unforeseen error: ", e.what()));
  }
}

}  // namespace rollcast
