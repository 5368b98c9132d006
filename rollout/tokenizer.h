// Text to token ids and back, from a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rollcast {

/// Turns ids into text one by one. What it has given out never changes and never ends in half a
/// character; all of it together is what Tokenizer::Decode gives for the same ids.
class TextStream {
 public:
  virtual ~TextStream() = default;
  /// Text that has become certain with `id`; possibly empty.
  virtual std::string Append(int32_t id) = 0;
  /// The rest. Nothing may be appended afterwards.
  virtual std::string Finish() = 0;
};

/// A BPE tokenizer: byte-level, or SentencePiece-style with byte fallback. Immutable and
/// thread-safe. A part of tokenizer.json that is not understood is an Error that names it. Its
/// `truncation` and `padding` are not applied, as in `transformers`: prompts are never cut
/// silently.
class Tokenizer {
 public:
  /// `path` is a tokenizer.json or the folder that holds one.
  static std::unique_ptr<Tokenizer> Load(const std::filesystem::path& path);
  virtual ~Tokenizer() = default;

  /// `text` is UTF-8; invalid bytes are taken as U+FFFD, as Python's `errors="replace"` does.
  /// `poll` is called on this thread, several times a second on a text that takes long; what it
  /// throws leaves Encode.
  virtual std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens = false,
                                      const std::function<void()>& poll = nullptr) const = 0;
  /// Ids that have no token are left out.
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;
  /// The stream must not outlive the tokenizer. Unless overridden, it calls Decode on all ids again
  /// for each one.
  virtual std::unique_ptr<TextStream> NewTextStream(bool skip_special_tokens) const;

  /// One more than the highest id.
  virtual int32_t vocab_size() const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  /// -1 when there is no such token.
  virtual int32_t TokenToId(std::string_view token) const = 0;
};

/// Decodes a growing list of ids; see TextStream. `tokenizer` must outlive it.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : stream_(tokenizer.NewTextStream(skip_special_tokens)) {}
  /// Text that has become certain with `id`; possibly empty.
  std::string Append(int32_t id) { return stream_->Append(id); }
  /// What is left, with U+FFFD for an unfinished character.
  std::string Finish() { return stream_->Finish(); }

 private:
  std::unique_ptr<TextStream> stream_;
};

}  // namespace rollcast
