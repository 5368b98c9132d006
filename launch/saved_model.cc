#include "launch/saved_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/mapped_file.h"
#include "kernels/check.h"
#include "launch/model_folder.h"

namespace rollcast {

namespace fs = std::filesystem;

namespace {

constexpr const char* kHead = "lm_head.weight";

/// Weights in any of the formats that model folders have; they are written anew.
bool HoldsWeights(const fs::path& file) {
  constexpr std::array kExtensions = {".safetensors", ".bin",     ".pt", ".pth",  ".ckpt",
                                      ".gguf",        ".msgpack", ".h5", ".onnx", ".part"};
  const std::string extension = file.extension().string();
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end() ||
         file.filename().string().ends_with(".index.json");
}

std::string ConfigText(const fs::path& file, bool untie_head) {
  const std::string text = ReadTextFile(file);
  if (!untie_head) return text;
  auto config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw Error(StrCat(file.string(), ": is no JSON object"));
  config["tie_word_embeddings"] = false;
  return config.dump(2) + "\n";
}

}  // namespace

void SaveModel(const fs::path& from, const fs::path& to, std::span<const HostTensor> updated,
               bool replace) {
  const auto is_updated = [&](const std::string& name) {
    return std::any_of(updated.begin(), updated.end(), [&](auto& t) { return t.name == name; });
  };
  const Checkpoint checkpoint = Checkpoint::Open(from);
  std::vector<HostTensor> tensors;
  for (const Checkpoint::Tensor& tensor : checkpoint.tensors())
    if (!is_updated(tensor.name)) tensors.push_back(tensor);
  tensors.insert(tensors.end(), updated.begin(), updated.end());

  ModelFolderWriter folder(to, replace);
  std::error_code error;
  fs::directory_iterator files(from, error);
  if (error) throw Error(StrCat(from.string(), ": cannot be listed: ", error.message()));
  for (const auto& entry : files) {
    const fs::path name = entry.path().filename();
    if (!entry.is_regular_file(error) || HoldsWeights(name) || name == "config.json") continue;
    if (!fs::copy_file(entry.path(), folder.staging() / name, error))
      throw Error(
          StrCat(to.string(), ": cannot copy ", entry.path().string(), ": ", error.message()));
  }
  folder.Write("config.json", ConfigText(from / "config.json", is_updated(kHead)));
  const std::pair<std::string, std::string> metadata{"format", "pt"};
  WriteSafetensors(folder.staging() / "model.safetensors", tensors, {&metadata, 1});
  folder.Commit();
}

void CheckSaveFolder(const fs::path& from, const fs::path& to, bool replace) {
  std::error_code error;
  if (fs::equivalent(from, to, error))
    throw Error(StrCat(to.string(), ": is the model that is trained; name another folder"));
  // As the saving itself: access rights alone do not tell what a file system makes of it.
  ModelFolderWriter probe(to, replace);
  probe.Write("probe", "can this be written?");
}

}  // namespace rollcast
