#include "launch/commands.h"

int main(int argc, char** argv) {
  using namespace rollcast;
  return RunCommandLine(
      {TrainerCommand(), WorkerCommand(), GenerateCommand(), ScoreCommand(), InspectCommand(),
       ReplayCommand(), TokenizeCommand(), ConvertCommand(), ExplainCommand(), BenchCommand()},
      argc, argv);
}
