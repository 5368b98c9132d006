// Which kernel each op of a decode step takes, and why the ones before it were passed over.
#pragma once

#include <ostream>
#include <string>

#include "launch/config.h"

namespace rollcast {

struct ExplainOptions {
  std::string shape;  // empty: the model of the configuration
  int batch = 1;      // sequences of the decode step
  std::string arch = "sm_90a";
};

/// Prints a table; returns the exit status. Throws Error for an unknown shape, model, kernel or
/// architecture, and for a kernel asked for by name whose condition fails.
int RunExplain(const Config& config, const ExplainOptions& options, std::ostream& out);

}  // namespace rollcast
