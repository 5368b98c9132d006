#include <algorithm>
#include <thread>
#include <utility>

#include "kernels/check.h"
#include "rollout/child_process.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

constexpr size_t kMaxLineBytes = 1 << 20;

/// One batch on its way through the child.
struct Batch {
  std::span<const ScoreInput> inputs;
  std::vector<Score> scores;
  std::vector<bool> answered;
  uint64_t first_id = 0;      // ids of this try: first_id + position in `asked`
  std::vector<size_t> asked;  // inputs sent in this try
  std::string breach;         // what the child wrote that is no reply to any of them

  size_t Unanswered() const {
    return static_cast<size_t>(std::count(answered.begin(), answered.end(), false));
  }
};

class CommandScorer : public Scorer {
 public:
  explicit CommandScorer(const ScorerConfig& config) : config_(config) { Start(); }

  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    const auto deadline = ScoringDeadline(config_);
    Batch batch{.inputs = inputs,
                .scores = std::vector<Score>(inputs.size()),
                .answered = std::vector<bool>(inputs.size(), false),
                .first_id = 0,
                .asked = {},
                .breach = ""};
    // Has it died since the last batch, that is no failed try of this one.
    if (child_ && child_->Ended()) child_.reset();
    std::string reason;
    for (int attempt = 0; attempt < config_.max_tries && batch.Unanswered() > 0; ++attempt) {
      std::this_thread::sleep_until(
          std::min(deadline, ScoringClock::now() + BackoffBefore(attempt)));
      reason = Try(batch, deadline);
      // A program that does not keep to the protocol will not do so in another try either.
      if (!batch.breach.empty() || ScoringClock::now() >= deadline) break;
    }
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!batch.answered[i]) batch.scores[i] = Unscored(reason);
    return std::move(batch.scores);
  }

 private:
  void Start() {
    incoming_.clear();
    child_ = std::make_unique<ChildProcess>(config_.command, "[scorer] ");
  }

  /// Asks for what is unanswered. Returns why something still is, or nothing.
  std::string Try(Batch& batch, ScoringClock::time_point deadline) try {
    if (!child_) Start();
    batch.first_id = next_id_;
    batch.asked.clear();
    std::string lines;
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      if (batch.answered[i]) continue;
      lines += InputToJson(batch.inputs[i], std::to_string(next_id_++));
      lines += '\n';
      batch.asked.push_back(i);
    }
    std::string_view outgoing = lines;
    while (batch.Unanswered() > 0) {
      const auto progress = child_->Exchange(outgoing, incoming_, deadline);
      TakeReplies(batch);
      if (!batch.breach.empty())
        return Drop(StrCat("the scorer command wrote ", batch.breach,
                           "; its standard output must hold one JSON object a line, each with the "
                           "\"id\" of the completion that it is about"));
      if (batch.Unanswered() == 0) break;
      // A child that trickles bytes would never let Exchange find the deadline itself.
      if (progress == ChildProcess::Progress::kDeadline || ScoringClock::now() >= deadline)
        return Drop(StrCat("the scorer command gave no reply within ", config_.deadline_s, " s"));
      if (progress == ChildProcess::Progress::kClosed)
        return StrCat("the scorer command ", Drop(""));
      if (incoming_.size() > kMaxLineBytes)
        return Drop(
            StrCat("the scorer command wrote a line of more than ", kMaxLineBytes, " bytes"));
    }
    // A child that answered all without reading all would take the rest for the next batch.
    if (!outgoing.empty()) Drop("");
    return "";
  } catch (const Error& error) {
    child_.reset();
    return error.what();
  }

  /// Ends the child; the next try starts a new one. Returns `reason`, or else how it ended.
  std::string Drop(std::string reason) {
    const std::string end = child_->End(std::chrono::milliseconds(reason.empty() ? 20 : 0));
    child_.reset();
    return reason.empty() ? end : reason;
  }

  void TakeReplies(Batch& batch) {
    size_t begin = 0;
    for (size_t end;
         batch.breach.empty() && (end = incoming_.find('\n', begin)) != std::string::npos;
         begin = end + 1)
      TakeReply(std::string_view(incoming_).substr(begin, end - begin), batch);
    incoming_.erase(0, begin);
  }

  void TakeReply(std::string_view line, Batch& batch) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    CommandReply reply = ReadCommandReply(line);
    if (!reply.breach.empty()) {
      batch.breach = std::move(reply.breach);
      return;
    }
    // An answer to an earlier batch, or a second one: too late to be of use.
    if (reply.id < batch.first_id) return;
    if (reply.id - batch.first_id >= batch.asked.size()) {
      batch.breach = StrCat("a reply with an unknown id: ", Excerpt(line));
      return;
    }
    const size_t i = batch.asked[reply.id - batch.first_id];
    batch.scores[i] = batch.answered[i]
                          ? Unscored("the scorer command replied twice to this completion")
                          : std::move(reply.score);
    batch.answered[i] = true;
  }

  const ScorerConfig config_;
  std::unique_ptr<ChildProcess> child_;  // null when it has to be started anew
  std::string incoming_;                 // an unfinished line
  uint64_t next_id_ = 1;                 // never used twice
};

}  // namespace

std::unique_ptr<Scorer> MakeCommandScorer(const ScorerConfig& config) {
  if (config.command.find_first_not_of(" \t\n") == std::string::npos)
    throw Error("the command scorer needs a command, and there is none");
  return std::make_unique<CommandScorer>(config);
}

}  // namespace rollcast
