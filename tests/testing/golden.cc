#include "tests/testing/golden.h"

#include <hdf5.h>

#include <algorithm>

#include "kernels/check.h"

namespace rollcast::testing {
namespace {

/// An HDF5 id and the call that closes it.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
    if (id_ < 0) throw Error(what + ": cannot open");
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { close_(id_); }
  hid_t get() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

template <class T>
std::vector<T> ReadDataset(hid_t file, const std::string& name, hid_t type) {
  const Handle dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose, name);
  const Handle space(H5Dget_space(dataset.get()), H5Sclose, name);
  std::vector<T> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
  if (H5Dread(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    throw Error(name + ": cannot read");
  return values;
}

}  // namespace

std::filesystem::path GoldenDir(const std::string& name) {
  return std::filesystem::path(ROLLCAST_TEST_DATA) / "golden" / name;
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDir("")))
    if (std::filesystem::exists(entry.path() / "golden.h5"))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<GoldenPrompt> ReadGolden(const std::string& name) {
  const std::string path = (GoldenDir(name) / "golden.h5").string();
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, path);
  std::vector<GoldenPrompt> prompts;
  for (int i = 0;; ++i) {
    const std::string group = StrCat("prompt_", i);
    if (H5Lexists(file.get(), group.c_str(), H5P_DEFAULT) <= 0) return prompts;
    prompts.push_back(
        {ReadDataset<int32_t>(file.get(), group + "/ids", H5T_NATIVE_INT32),
         ReadDataset<float>(file.get(), group + "/logits", H5T_NATIVE_FLOAT),
         ReadDataset<int32_t>(file.get(), group + "/greedy_ids", H5T_NATIVE_INT32),
         ReadDataset<float>(file.get(), group + "/greedy_logprobs", H5T_NATIVE_FLOAT)});
  }
}

}  // namespace rollcast::testing
