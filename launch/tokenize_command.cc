#include "launch/tokenize_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/json_text.h"
#include "kernels/check.h"
#include "launch/output_path.h"
#include "rollout/tokenizer.h"

namespace rollcast {

namespace {

/// Rows start so, because objects are written in the order of their keys.
constexpr OutputKind kTokenRows{"an output of rollcast tokenize", "{\"decoded\":"};

/// Writes to a file beside `path` and renames it in Commit, so that `path` is never half written.
/// What is not a regular file (a pipe, a terminal) is written directly.
class AtomicFile {
 public:
  AtomicFile(const std::filesystem::path& path, bool renames)
      : path_(path), written_(path), renames_(renames) {
    if (renames_) written_ += StrCat(".tmp.", getpid());
    errno = 0;
    out_.open(written_, std::ios::binary | std::ios::trunc);
    Check("cannot be written");
  }
  ~AtomicFile() {
    std::error_code ignored;
    if (renames_ && !committed_) std::filesystem::remove(written_, ignored);
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(const std::string& text) {
    out_ << text;
    Check("cannot be written");
  }
  void Commit() {
    out_.close();
    Check("cannot be written");
    std::error_code error;
    if (renames_) std::filesystem::rename(written_, path_, error);
    if (error) throw Error(StrCat(path_.string(), ": cannot be written: ", error.message()));
    committed_ = true;
  }

 private:
  void Check(const char* what) {
    if (out_.good()) return;
    throw Error(StrCat(path_.string(), ": ", what, errno != 0 ? ": " : "",
                       errno != 0 ? std::strerror(errno) : ""));
  }

  std::filesystem::path path_, written_;
  std::ofstream out_;
  const bool renames_;
  bool committed_ = false;
};

/// A pipe, a terminal, or another device, also behind a link such as /dev/stdout.
bool IsStream(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  return std::filesystem::is_character_file(status) || std::filesystem::is_fifo(status);
}

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
  std::ifstream in(options.input, std::ios::binary);
  if (!in || std::filesystem::is_directory(options.input))
    throw Error(StrCat(options.input.string(), ": cannot be read"));
  const bool stream = IsStream(options.output);
  if (!stream) PrepareOutput(options.output, options.overwrite, options.input, kTokenRows);
  AtomicFile out(options.output, /*renames=*/!stream);
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
  if (in.bad()) throw Error(StrCat(options.input.string(), ": cannot be read to its end"));
  out.Commit();
  return 0;
}

}  // namespace rollcast
