// The `decoder` of a tokenizer.json: turns token strings back into text, one by one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rollout/json_node.h"

namespace rollcast {

/// A list of decoders, each applied to what the one before it gives. Immutable and thread-safe.
class TokenDecoder {
 public:
  /// Joins tokens with spaces, as Hugging Face does for a file without a decoder.
  TokenDecoder();
  /// An Error names a decoder that is not understood.
  explicit TokenDecoder(const JsonNode& node);
  ~TokenDecoder();

  /// One text in the making. What it has given out never changes and is whole characters.
  class Run {
   public:
    explicit Run(const TokenDecoder& decoder);
    ~Run();
    /// Appends to `text` what has become certain with `token`, which is valid UTF-8.
    void Append(std::string_view token, std::string& text);
    void Finish(std::string& text);

   private:
    class Sink;
    std::unique_ptr<Sink> sink_;
    std::vector<std::unique_ptr<class DecodeStage>> stages_;  // first to last
  };

  /// Makes a stage of a run. `next` outlives it.
  using StageMaker = std::function<std::unique_ptr<DecodeStage>(DecodeStage* next)>;

 private:
  void AddMakers(const JsonNode& node, int depth);
  void AddFusedMaker(const JsonNode& node, const std::string& type);
  std::vector<StageMaker> makers_;
  bool fused_ = false;  // while reading: the stages so far give one text in chunks
};

/// Takes tokens, or the chunks of one text, and gives the next stage the same.
class DecodeStage {
 public:
  explicit DecodeStage(DecodeStage* next) : next_(next) {}
  virtual ~DecodeStage() = default;
  virtual void Push(std::string_view piece) = 0;
  virtual void Finish() { next_->Finish(); }

 protected:
  DecodeStage* next_;
};

}  // namespace rollcast
