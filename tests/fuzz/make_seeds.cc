// Writes the inputs that the fuzz targets start from: DIR/<target>/<name>. They are made here, from
// tests/data and with the project's own writers, so that they follow every change of a format.
// usage: make_seeds DIR
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/safetensors.h"
#include "launch/config.h"
#include "tests/fuzz/small_tokenizer.h"
#include "tests/testing/gguf_image.h"
#include "trainer_bridge/job_messages.h"
#include "trainer_bridge/messages.h"

namespace rollcast {
namespace {

namespace fs = std::filesystem;

const fs::path kData = ROLLCAST_TEST_DATA;
fs::path root;

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  RC_CHECK(in.good(), path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

fs::path Place(const std::string& target, const std::string& name) {
  fs::create_directories(root / target);
  return root / target / name;
}

void Seed(const std::string& target, const std::string& name, const std::string& bytes) {
  std::ofstream(Place(target, name), std::ios::binary) << bytes;
}

template <class... Ms>
void SeedMessages(const Ms&... messages) {
  const auto seed = [](const auto& message) {
    const std::vector<std::byte> bytes = Encode(message);
    Seed("wire_fuzz", std::to_string(static_cast<int>(message.kType)),
         {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  (seed(messages), ...);
}

void Wire() {
  Trajectory trajectory;
  trajectory.prompt_id = "p";
  trajectory.prompt = {1, 2};
  trajectory.completion = {3};
  trajectory.logprob = trajectory.logprob_raw = {-0.5f};
  trajectory.spans = {{0, 1, 4}};
  trajectory.sampling.stop_strings = {"\n"};
  GroupWork group;
  group.text = "text";
  group.samples = {0, 1};
  WireManifest manifest;
  manifest.entries.resize(1);
  manifest.entries[0].shape = {2, 3};
  manifest.aliases = {{"lm_head.weight", "model.embed_tokens.weight"}};
  UpdateAnnounce announce;
  announce.version = 7;
  announce.carried = {0};
  announce.group = {0, 1};
  SeedMessages(
      Heartbeat{}, manifest, ManifestQuery{}, announce, UpdateVote{}, UpdateBegin{}, UpdateReady{},
      UpdateVerified{}, UpdateCommit{}, UpdateCommitted{}, UpdateAbort{}, UpdateAborted{},
      UpdateFailed{}, DecisionQuery{}, UpdateReport{}, BeatMessage{WorkerBeat{}}, ReadyMessage{},
      PullMessage{}, ResultsMessage{{trajectory}, {ScoreResult{}}}, StopMessage{"stop"},
      SubmitMessage{{group}}, CollectMessage{}, ScoreMessage{}, StatsMessage{},
      LeaveBehindMessage{{1}, "late"}, StartMessage{}, WorkMessage{{group}, {}}, AbortMessage{},
      CollectReply{}, ScoreReply{}, StatsReply{1, JobStats{.workers = {WorkerBeat{}}}},
      RankLostMessage{}, FinishMessage{}, FailMessage{});
}

void WeightFiles() {
  for (const uint32_t type : {0u, 1u, 2u, 3u, 8u, 30u})  // every GgufType
    Seed("gguf_fuzz", std::to_string(type),
         testing::GgufImage()
                 .Header(1, 5)
                 .StringValue("general.architecture", "llama")
                 .U32Value("general.alignment", 32)
                 .F32Value("eps", 1e-6f)
                 .BoolValue("flag", 1)
                 .StringsValue("tokens", {"a", "b"})
                 .Tensor("t", {32, 2}, type, 0)
                 .Align()
                 .bytes() +
             std::string(type == 0   ? 256
                         : type == 2 ? 36
                         : type == 3 ? 40
                         : type == 8 ? 68
                                     : 128,
                         '\x3c'));
  const std::vector<std::byte> bytes(24);
  const std::vector<HostTensor> tensors = {{"a", DType::kF32, {2, 3}, bytes},
                                           {"b", DType::kBF16, {12}, bytes},
                                           {"none", DType::kU8, {0, 5}, {}}};
  const std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}};
  WriteSafetensors(Place("safetensors_fuzz", "three"), tensors, metadata);
  for (const auto& folder : fs::directory_iterator(kData / "golden"))
    Seed("model_config_fuzz", folder.path().filename(), ReadAll(folder.path() / "config.json"));
}

void Texts() {
  Seed("config_fuzz", "defaults", ToToml(Config{}));
  Seed("config_fuzz", "sets",
       "[engine]\nmax_running = 4\n[sampling]\nstop_strings = [\"a\", 'b']\n--set\n"
       "sampling.temperature=0.5\nscorer.pattern=\\d+ = (x)\nsampling.stop_ids=[1, 2]\n");
  Seed("prompt_fuzz", "rows",
       "{\"id\": \"a\", \"text\": \"one\", \"answer\": 1.5, \"metadata\": {\"level\": [1]}}\n"
       "{\"tokens\": [1, 999], \"sampling\": {\"temperature\": 0.5, \"stop_ids\": [3], \"seed\": "
       "4}}\n"
       "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
  Seed("prompt_fuzz", "template",
       "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nHelp.<|im_end|>\\n' }}"
       "{% endif %}{% if add_generation_prompt %}</think>{% endif %}\n---\n"
       "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"user\", "
       "\"content\": \"b\"}]}\n");
  // The first byte of the next two targets chooses what the rest is.
  Seed("scorer_fuzz", "command", "\x03{\"id\": \"7\", \"reward\": NaN}");
  Seed("scorer_fuzz", "command_error", "\x03{\"id\": 7, \"error\": \"cannot parse\"}");
  Seed("scorer_fuzz", "http", "\x07{\"scores\": [1.0, {\"error\": \"cannot parse\"}]}");
  Seed("scorer_fuzz", "numbers", "\x02-$1,234.50 is \\boxed{\\frac{ 3 }{-4}}|50 \\% #### 1e3/4");
  for (const auto& folder : fs::directory_iterator(kData / "tokenizers"))
    if (folder.is_directory())
      Seed("tokenizer_fuzz", folder.path().filename(),
           "\x04" + testing::SmallTokenizer(folder.path() / "tokenizer.json").dump());
  std::ifstream variants(kData / "tokenizers" / "variants.jsonl");
  for (std::string line; std::getline(variants, line);) {
    const auto row = nlohmann::json::parse(line);
    const std::string name = row["name"];
    Seed("tokenizer_fuzz", "patch_" + name, "\x03" + row["patch"].dump());
    Seed("tokenizer_fuzz", "text_" + name,
         std::string(1, '\0') + row["cases"].back()["text"].get<std::string>());
  }
  Seed("tokenizer_fuzz", "ids", "\x01\x01\x02\x03\x04");
  Seed("tokenizer_fuzz", "pattern",
       "\x02(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s+(?!\\S)|\\s+\nIt's  3");
}

}  // namespace
}  // namespace rollcast

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_seeds DIR\n";
    return 2;
  }
  rollcast::root = argv[1];
  rollcast::WeightFiles();
  rollcast::Wire();
  rollcast::Texts();
}
