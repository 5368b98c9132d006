#include <iostream>
#include <memory>

#include "launch/commands.h"
#include "launch/inspect_command.h"

namespace rollcast {

Command InspectCommand() {
  auto options = std::make_shared<InspectOptions>();
  return {
      .name = "inspect",
      .summary = "show what is in a trajectory file",
      .details =
          "Prints a summary: outcomes, rewards, lengths and lags, filters, weight updates.\n"
          "A filter is FIELD OP VALUE. FIELD: a column of /trajectories or policy_lag. OP: = and "
          "!=; "
          "for\nnumbers also <, <=, > and >=; for texts ~ (contains). A row must pass all of them.",
      .options = {Required("file", &options->file, "HDF5 file"),
                  Optional("--filter", &options->filters,
                           "only rows that pass, e.g. --filter 'reward > 0'; as often as wanted"),
                  Optional("--jsonl", &options->jsonl,
                           "one JSON object a row instead of the summary"),
                  Optional("--limit", &options->limit, "rows at most; -1 = all"),
                  Optional("--show-config", &options->config,
                           "the configuration of the run instead of the summary")},
      .run = [options](const Config&) { return RunInspect(*options, std::cout); }};
}

}  // namespace rollcast
