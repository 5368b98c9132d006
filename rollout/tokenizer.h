// Text to token ids and back, from a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rollcast {

/// A BPE tokenizer: byte-level, or SentencePiece-style with byte fallback. Immutable and
/// thread-safe. A part of tokenizer.json that is not understood is an Error that names it.
class Tokenizer {
 public:
  /// `path` is a tokenizer.json or the folder that holds one.
  static std::unique_ptr<Tokenizer> Load(const std::filesystem::path& path);
  virtual ~Tokenizer() = default;

  /// `text` is UTF-8; invalid bytes are taken as U+FFFD, as Python's `errors="replace"` does.
  virtual std::vector<int32_t> Encode(std::string_view text,
                                      bool add_special_tokens = false) const = 0;
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;

  /// One more than the highest id.
  virtual int32_t vocab_size() const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  /// -1 when there is no such token.
  virtual int32_t TokenToId(std::string_view token) const = 0;
};

/// Decodes a growing list of ids; what it has given out never changes and never ends in half a
/// character.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}
  /// Text that has become certain with `id`; possibly empty.
  std::string Append(int32_t id);
  /// What is left, with U+FFFD for an unfinished character.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> ids_;
  size_t prefix_ = 0;  // ids_[prefix_, read_) have been given out and are decoded again for context
  size_t read_ = 0;
};

}  // namespace rollcast
