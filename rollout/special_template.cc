#include "rollout/special_template.h"

#include <algorithm>

#include "kernels/check.h"
#include "rollout/bpe.h"

namespace rollcast {

namespace {

constexpr int kMaxDepth = 16;

int32_t TokenId(const JsonNode& node) { return static_cast<int32_t>(node.Int(0, kMaxTokenId)); }

/// ["<s>", 1]
int32_t PairId(const JsonNode& node) {
  if (node.size() != 2) node.Fail("is not a token and its id");
  return TokenId(node[1]);
}

}  // namespace

SpecialTemplate::SpecialTemplate(const JsonNode& node) { Read(node, 0); }

void SpecialTemplate::Read(const JsonNode& node, int depth) {
  const JsonNode type_node = node.At("type");
  const std::string& type = type_node.String();
  if (type == "ByteLevel") return;  // trims offsets, which rollcast does not give
  if (type == "Sequence") {
    if (depth == kMaxDepth) node.Fail("is nested too deeply");
    const JsonNode parts = node.At("processors");
    for (size_t i = 0; i < parts.size(); ++i) Read(parts[i], depth + 1);
    return;
  }
  if (!pieces_.empty()) node.Fail("is the second processor that adds tokens: not supported");
  if (type == "TemplateProcessing") {
    ReadTemplate(node);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    pieces_ = {{false, {PairId(node.At("cls"))}}, {true, {}}, {false, {PairId(node.At("sep"))}}};
  } else {
    type_node.FailUnsupported();
  }
}

void SpecialTemplate::ReadTemplate(const JsonNode& node) {
  const JsonNode single = node.At("single");
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonNode piece = single[i];
    if (const auto sequence = piece.Find("Sequence")) {
      const JsonNode id = sequence->At("id");
      if (id.String() != "A") id.FailUnsupported();
      pieces_.push_back({true, {}});
    } else if (const auto special = piece.Find("SpecialToken")) {
      const JsonNode ids = node.At("special_tokens").At(special->At("id").String()).At("ids");
      Piece added{false, {}};
      for (size_t k = 0; k < ids.size(); ++k) added.ids.push_back(TokenId(ids[k]));
      pieces_.push_back(std::move(added));
    } else {
      piece.FailUnsupported();
    }
  }
  if (pieces_.empty()) single.Fail("is empty");
}

std::vector<int32_t> SpecialTemplate::Apply(std::vector<int32_t> ids,
                                            bool add_special_tokens) const {
  if (pieces_.empty()) return ids;
  std::vector<int32_t> result;
  result.reserve(ids.size() + pieces_.size());
  for (const Piece& piece : pieces_) {
    if (!piece.text && !add_special_tokens) continue;
    const std::vector<int32_t>& source = piece.text ? ids : piece.ids;
    result.insert(result.end(), source.begin(), source.end());
  }
  return result;
}

int32_t SpecialTemplate::vocab_size() const {
  int32_t size = 0;
  for (const Piece& piece : pieces_)
    for (const int32_t id : piece.ids) size = std::max(size, id + 1);
  return size;
}

}  // namespace rollcast
