#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <optional>
#include <thread>

#include "kernels/check.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kMaxResponseBytes = 16 << 20;

struct Url {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string authority;  // as the Host header wants it
  std::string target;
};

/// Throws Error when `text` is not http://host[:port][/path][?query].
Url ParseUrl(const std::string& text) {
  const auto fail = [&](const char* why) {
    throw Error(StrCat("scorer url \"", text, "\" ", why, "; expected http://host[:port]/path"));
  };
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://")) fail("wants TLS, which this scorer does not speak");
  if (!text.starts_with(kScheme)) fail("does not begin with http://");
  if (std::any_of(text.begin(), text.end(), [](char c) { return c <= ' ' || c == 0x7f; }))
    fail("has white space or a control or non-ASCII character in it");
  std::string_view rest = std::string_view(text).substr(kScheme.size());
  rest = rest.substr(0, rest.find('#'));
  Url url;
  const size_t path = std::min(rest.find_first_of("/?"), rest.size());
  url.authority = rest.substr(0, path);
  url.target = rest.substr(path);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  if (url.authority.find('@') != std::string::npos) fail("names a user");
  std::string_view port = "80";
  std::string_view host = url.authority;
  const size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  if (bracket == std::string_view::npos) fail("has an unclosed bracket");
  if (const size_t colon = host.find(':', bracket); colon != std::string_view::npos) {
    port = host.substr(colon + 1);
    host = host.substr(0, colon);
  }
  if (host.starts_with('[')) {
    if (host.size() != bracket + 1) fail("has text behind the bracket");
    host = host.substr(1, bracket - 1);
  }
  if (host.empty()) fail("names no host");
  int number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535)
    fail("has a port that is not in [1, 65535]");
  url.host = host;
  url.port = port;
  return url;
}

/// One try of one batch: what came back, or why nothing did.
struct Reply {
  bool retry = false;  // another try may do better
  std::string error;   // empty: `body` holds a 2xx reply
  std::string body;
};

class HttpScorer : public Scorer {
 public:
  explicit HttpScorer(const ScorerConfig& config)
      : config_(config), url_(ParseUrl(config.url)), resolver_(io_) {}

  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    if (inputs.empty()) return {};
    const auto deadline = ScoringDeadline(config_);
    std::string body = "{\"inputs\":[";
    for (size_t i = 0; i < inputs.size(); ++i)
      body += (i ? "," : "") + InputToJson(inputs[i], std::to_string(i));
    body += "]}";
    Reply reply;
    for (int attempt = 0; attempt < config_.max_tries; ++attempt) {
      std::this_thread::sleep_until(
          std::min(deadline, ScoringClock::now() + BackoffBefore(attempt)));
      if (attempt > 0 && ScoringClock::now() >= deadline) break;
      reply = Post(body, deadline);
      if (!reply.retry) break;
    }
    try {
      if (reply.error.empty()) return ReadHttpReply(reply.body, inputs.size());
    } catch (const Error& error) {
      reply.error = error.what();
    }
    return std::vector<Score>(inputs.size(),
                              Unscored(StrCat("scorer ", config_.url, ": ", reply.error)));
  }

 private:
  Reply Post(const std::string& body, ScoringClock::time_point deadline) {
    const auto late = [&] { return StrCat("no reply within ", config_.deadline_s, " s"); };
    const auto failed = [&](const char* what, error_code error) {
      if (error == asio::error::timed_out) return Reply{false, late(), ""};
      return Reply{true, StrCat(what, ": ", error.message()), ""};
    };

    // A name look-up cannot be interrupted: what it fills must outlive this call.
    const auto addresses = std::make_shared<tcp::resolver::results_type>();
    error_code error = Await(deadline, [&](auto done) {
      resolver_.async_resolve(url_.host, url_.port, [addresses, done](error_code e, auto results) {
        *addresses = std::move(results);
        done(e);
      });
    });
    if (error == asio::error::timed_out) resolver_.cancel();
    if (error) return failed("cannot resolve the host", error);

    tcp::socket socket(io_);
    const auto await = [&](auto start) {
      const error_code result = Await(deadline, start);
      if (result == asio::error::timed_out) {
        // The pending operation still refers to what lives in this call: let it end.
        error_code ignored;
        socket.close(ignored);
        io_.restart();
        io_.poll();
      }
      return result;
    };
    error = await([&](auto done) {
      asio::async_connect(socket, *addresses, [done](error_code e, const auto&) { done(e); });
    });
    if (error) return failed("cannot connect", error);
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);

    http::request<http::string_body> request(http::verb::post, url_.target, 11, body);
    request.set(http::field::host, url_.authority);
    request.set(http::field::content_type, "application/json");
    request.set(http::field::accept, "application/json");
    request.set(http::field::user_agent, "rollcast");
    request.keep_alive(false);
    request.prepare_payload();
    error = await([&](auto done) {
      http::async_write(socket, request, [done](error_code e, size_t) { done(e); });
    });
    // A server may answer, say with 413, and close before it has read all.
    const bool cut_short =
        error == asio::error::broken_pipe || error == asio::error::connection_reset;
    if (error && !cut_short) return failed("sending", error);

    boost::beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxResponseBytes);
    error = await([&](auto done) {
      http::async_read(socket, buffer, parser, [done](error_code e, size_t) { done(e); });
    });
    if (error == http::error::body_limit)
      return {false, StrCat("the reply has more than ", kMaxResponseBytes, " bytes"), ""};
    if (error) return failed("no whole reply", error);
    const int status = static_cast<int>(parser.get().result_int());
    if (status / 100 != 2)
      return {status / 100 == 5, StrCat("HTTP status ", status, ": ", Excerpt(parser.get().body())),
              ""};
    return {false, "", std::move(parser.get().body())};
  }

  /// Starts one operation and runs it to its end: its error, or timed_out when `deadline` came
  /// first and it is still pending.
  template <class Start>
  error_code Await(ScoringClock::time_point deadline, Start&& start) {
    const auto result = std::make_shared<std::optional<error_code>>();
    start([result](error_code error) { *result = error; });
    io_.restart();
    while (!*result && io_.run_one_until(deadline) > 0) {
    }
    if (!*result) return asio::error::timed_out;
    // The system's own connection time-out counts as a failure to connect, not as our deadline.
    if (**result == asio::error::timed_out) return asio::error::host_unreachable;
    return **result;
  }

  const ScorerConfig config_;
  const Url url_;
  asio::io_context io_{1};
  tcp::resolver resolver_;
};

}  // namespace

std::unique_ptr<Scorer> MakeHttpScorer(const ScorerConfig& config) {
  if (config.url.empty()) throw Error("the http scorer needs a url, and there is none");
  return std::make_unique<HttpScorer>(config);
}

}  // namespace rollcast
