#include "rollout/json_node.h"

#include <nlohmann/json.hpp>

#include "engine/json_text.h"
#include "kernels/check.h"

namespace rollcast {

namespace {
const nlohmann::json& Json(const void* value) { return *static_cast<const nlohmann::json*>(value); }
}  // namespace

JsonDocument::JsonDocument(std::string name, std::string_view text)
    : name_(std::move(name)),
      value_(std::make_shared<const nlohmann::json>(ParseJson<nlohmann::json>(text, name_))) {}

JsonNode JsonDocument::Root() const { return JsonNode(value_.get(), &name_, ""); }

void JsonNode::Fail(std::string_view what) const {
  throw Error(StrCat(*document_, ": ", path_.empty() ? "top level" : path_, " ", what));
}

void JsonNode::FailType(std::string_view expected) const {
  Fail(StrCat("is ", JsonKind(Json(value_)), ", expected ", expected));
}

void JsonNode::FailUnsupported() const {
  Fail(StrCat(Json(value_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
              " is not supported"));
}

bool JsonNode::IsNull() const { return Json(value_).is_null(); }
bool JsonNode::IsString() const { return Json(value_).is_string(); }
bool JsonNode::IsArray() const { return Json(value_).is_array(); }
bool JsonNode::IsObject() const { return Json(value_).is_object(); }

const std::string& JsonNode::String() const {
  if (!IsString()) FailType("a string");
  return Json(value_).get_ref<const std::string&>();
}

bool JsonNode::Bool() const {
  if (!Json(value_).is_boolean()) FailType("true or false");
  return Json(value_).get<bool>();
}

double JsonNode::Number() const {
  if (!Json(value_).is_number()) FailType("a number");
  return Json(value_).get<double>();
}

int64_t JsonNode::Int(int64_t low, int64_t high) const {
  const nlohmann::json& json = Json(value_);
  if (!json.is_number_integer()) FailType("an integer");
  // An unsigned value may not fit into int64_t.
  const bool fits = !json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX};
  if (!fits || json.get<int64_t>() < low || json.get<int64_t>() > high)
    Fail(StrCat("is ", json.dump(), ", expected ", low, " to ", high));
  return json.get<int64_t>();
}

JsonNode JsonNode::At(std::string_view key) const {
  if (!IsObject()) FailType("an object");
  const auto member = Json(value_).find(key);
  if (member == Json(value_).end()) Fail(StrCat("has no \"", key, "\""));
  return JsonNode(&*member, document_, StrCat(path_, path_.empty() ? "" : ".", key));
}

std::optional<JsonNode> JsonNode::Find(std::string_view key) const {
  if (!IsObject()) FailType("an object");
  const auto member = Json(value_).find(key);
  if (member == Json(value_).end() || member->is_null()) return std::nullopt;
  return At(key);
}

bool JsonNode::BoolOr(std::string_view key, bool fallback) const {
  const auto node = Find(key);
  return node ? node->Bool() : fallback;
}

void JsonNode::ForEachMember(
    const std::function<void(const std::string&, const JsonNode&)>& visit) const {
  if (!IsObject()) FailType("an object");
  for (const auto& [key, value] : Json(value_).items())
    visit(key, JsonNode(&value, document_, StrCat(path_, "[\"", key, "\"]")));
}

size_t JsonNode::size() const {
  if (!IsArray()) FailType("an array");
  return Json(value_).size();
}

JsonNode JsonNode::operator[](size_t index) const {
  RC_CHECK_LT(index, size());
  return JsonNode(&Json(value_)[index], document_, StrCat(path_, "[", index, "]"));
}

}  // namespace rollcast
