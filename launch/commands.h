// The subcommands, each defined in launch/<name>_cli.cc and listed in launch/main.cc.
#pragma once

#include "launch/command.h"

namespace rollcast {

Command TrainerCommand();
Command WorkerCommand();
Command GenerateCommand();
Command ScoreCommand();
Command InspectCommand();
Command TokenizeCommand();
Command ConvertCommand();
Command ReplayCommand();
Command ExplainCommand();
Command BenchCommand();

}  // namespace rollcast
