// A trained policy as a Hugging Face folder that rollcast and transformers load.
#pragma once

#include <filesystem>
#include <span>

#include "engine/safetensors.h"

namespace rollcast {

/// Writes the checkpoint folder `from` to the folder `to`, with `updated` in place of its tensors
/// of the same names: config.json, the tokenizer and every other small file are copied, all tensors
/// go into one model.safetensors. Where an output head of its own is among `updated`, config.json
/// says that it is no longer tied. `to` appears whole or not at all; `replace` allows for a model
/// folder of that name to be there already. Throws Error naming the path.
void SaveModel(const std::filesystem::path& from, const std::filesystem::path& to,
               std::span<const HostTensor> updated, bool replace);

/// Throws Error when SaveModel(from, to, ..., replace) could not put a folder there, which it
/// tries; leaves nothing but the missing folders above `to`.
void CheckSaveFolder(const std::filesystem::path& from, const std::filesystem::path& to,
                     bool replace);

}  // namespace rollcast
