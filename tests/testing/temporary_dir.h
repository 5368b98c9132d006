// A fresh folder for one test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "kernels/check.h"

namespace rollcast::testing {

/// Created empty, removed with all that is in it when the object goes.
class TemporaryDir {
 public:
  TemporaryDir() {
    std::string name = (std::filesystem::temp_directory_path() / "rollcast_test_XXXXXX").string();
    RC_CHECK(mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;
  ~TemporaryDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace rollcast::testing
