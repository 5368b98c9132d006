#include "launch/tokenize_command.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/input_stream.h"
#include "engine/json_text.h"
#include "kernels/check.h"
#include "launch/output_path.h"
#include "launch/unfinished_file.h"
#include "rollout/tokenizer.h"

namespace rollcast {

namespace {

/// Rows start so, because objects are written in the order of their keys.
constexpr OutputKind kTokenRows{"an output of rollcast tokenize", "{\"decoded\":"};

/// A pipe, a terminal, or another device, also behind a link such as /dev/stdout.
bool IsDevice(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  return std::filesystem::is_character_file(status) || std::filesystem::is_fifo(status);
}

/// The standard output, a device, or a regular file, which appears once it is complete.
class RowsOutput {
 public:
  explicit RowsOutput(const TokenizeOptions& options) {
    const std::filesystem::path& path = options.output;
    if (path == "-") return;
    name_ = path.string();
    const bool device = IsDevice(path);
    if (!device) {
      PrepareOutput(path, options.overwrite, options.input, kTokenRows);
      unfinished_.emplace(path);
    }
    errno = 0;
    file_.open(device ? path : unfinished_->written(), std::ios::binary | std::ios::trunc);
    out_ = &file_;
    Check();
  }

  void Write(const std::string& text) {
    *out_ << text;
    Check();
  }
  void Commit() {
    out_->flush();
    if (file_.is_open()) file_.close();
    Check();
    if (unfinished_) unfinished_->Commit();
  }

 private:
  void Check() const {
    if (out_->good()) return;
    throw Error(StrCat(name_, ": cannot be written", errno != 0 ? ": " : "",
                       errno != 0 ? std::strerror(errno) : ""));
  }

  std::string name_ = "standard output";      // for messages
  std::optional<UnfinishedFile> unfinished_;  // outlives file_
  std::ofstream file_;
  std::ostream* out_ = &std::cout;
};

std::string Text(const std::string& line, const std::string& file, size_t number) {
  const auto row = ParseJson<nlohmann::json>(line, file, number);
  const std::string place = StrCat(file, ":", number);
  if (!row.is_object()) throw Error(StrCat(place, ": is ", JsonKind(row), ", expected an object"));
  const auto text = row.find("text");
  if (text == row.end()) throw Error(StrCat(place, ": has no \"text\""));
  if (!text->is_string())
    throw Error(StrCat(place, ": \"text\" is ", JsonKind(*text), ", expected a string"));
  return text->get<std::string>();
}

}  // namespace

int RunTokenize(const TokenizeOptions& options) {
  const auto tokenizer = Tokenizer::Load(options.tokenizer);
  InputStream in(options.input);
  RowsOutput out(options);
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto ids =
        tokenizer->Encode(Text(line, options.input.string(), number), options.add_special_tokens);
    const nlohmann::json row = {{"ids", ids},
                                {"decoded", tokenizer->Decode(ids, false)},
                                {"decoded_skip_special", tokenizer->Decode(ids, true)}};
    out.Write(row.dump() + "\n");
  }
  out.Commit();
  return 0;
}

}  // namespace rollcast
