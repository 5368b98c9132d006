#include <gtest/gtest.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/check.h"
#include "rollout/scorer.h"

namespace rollcast {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

/// A server on 127.0.0.1 that gives connection i the bytes script[i], whatever is asked, and
/// closes. Empty bytes: it never answers and holds the connection until the client leaves.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> script)
      : acceptor_(io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
        port_(acceptor_.local_endpoint().port()),
        thread_([this, script = std::move(script)] {
          for (const std::string& response : script) Serve(response);
        }) {}
  ~ScriptedServer() {
    // Ends an accept that no client will come for.
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
    thread_.join();
  }

  std::string Url(const std::string& target = "/score") const {
    return StrCat("http://127.0.0.1:", port_, target);
  }
  std::vector<http::request<http::string_body>> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void Serve(const std::string& response) {
    boost::system::error_code error;
    tcp::socket socket(io_);
    acceptor_.accept(socket, error);
    if (error) return;
    boost::beast::flat_buffer buffer;
    http::request_parser<http::string_body> parser;
    parser.body_limit(64 << 20);
    http::read(socket, buffer, parser, error);
    if (!error) {
      const std::lock_guard lock(mutex_);
      requests_.push_back(parser.get());
    }
    if (response.empty()) {
      char byte;
      asio::read(socket, asio::buffer(&byte, 1), error);
      return;
    }
    asio::write(socket, asio::buffer(response), error);
    socket.shutdown(tcp::socket::shutdown_both, error);
  }

  asio::io_context io_;
  tcp::acceptor acceptor_;
  const unsigned short port_;
  mutable std::mutex mutex_;
  std::vector<http::request<http::string_body>> requests_;
  std::thread thread_;
};

std::string Response(int status, const std::string& body) {
  return StrCat("HTTP/1.1 ", status,
                " X\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                body);
}

ScorerConfig Http(std::string url, double deadline_s = 20, int max_tries = 3) {
  ScorerConfig config;
  config.kind = "http";
  config.url = std::move(url);
  config.deadline_s = deadline_s;
  config.max_tries = max_tries;
  return config;
}

std::vector<Score> ScoreTwo(const ScorerConfig& config) {
  std::vector<ScoreInput> inputs(2);
  inputs[0].completion = "one";
  inputs[0].reference = "1";
  inputs[1].completion = "two";
  auto scores = MakeScorer(config)->ScoreBatch(inputs);
  RC_CHECK_EQ(scores.size(), 2u);
  return scores;
}

/// Both completions failed, for the same reason.
std::string BothErrors(const std::vector<Score>& scores) {
  EXPECT_EQ(scores[0].error, scores[1].error);
  return scores[0].error;
}

TEST(HttpScorerTest, PostsABatch) {
  ScriptedServer server({Response(200, R"({"scores": [0.5, -1]})")});
  const auto scores = ScoreTwo(Http(server.Url("/score?model=x")));
  EXPECT_EQ(scores[0].error, "");
  EXPECT_EQ(scores[0].reward, 0.5);
  EXPECT_EQ(scores[1].reward, -1);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].method(), http::verb::post);
  EXPECT_EQ(requests[0].target(), "/score?model=x");
  EXPECT_EQ(requests[0][http::field::content_type], "application/json");
  EXPECT_EQ(StrCat("http://", requests[0][http::field::host], "/score?model=x"),
            server.Url("/score?model=x"));
  const auto body = nlohmann::json::parse(requests[0].body());
  ASSERT_EQ(body["inputs"].size(), 2u);
  EXPECT_EQ(body["inputs"][0]["completion"], "one");
  EXPECT_EQ(body["inputs"][0]["answer"], "1");
  EXPECT_EQ(body["inputs"][1]["completion"], "two");
  EXPECT_EQ(body["inputs"][1]["answer"], nullptr);
}

TEST(HttpScorerTest, AnEmptyBatchAsksNobody) {
  EXPECT_TRUE(MakeScorer(Http("http://127.0.0.1:1/"))->ScoreBatch({}).empty());
}

TEST(HttpScorerTest, ChunkedReply) {
  ScriptedServer server(
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
       "8\r\n{\"scores\r\n9\r\n\":[1,0.5]\r\n1\r\n}\r\n0\r\n\r\n"});
  const auto scores = ScoreTwo(Http(server.Url()));
  EXPECT_EQ(scores[0].error, "");
  EXPECT_EQ(scores[0].reward, 1);
  EXPECT_EQ(scores[1].reward, 0.5);
}

TEST(HttpScorerTest, AServerErrorIsTriedAgain) {
  ScriptedServer server(
      {Response(500, "busy"), Response(503, ""), Response(200, R"({"scores": [1, 2]})")});
  const auto scores = ScoreTwo(Http(server.Url()));
  EXPECT_EQ(scores[0].error, "");
  EXPECT_EQ(scores[1].reward, 2);
  EXPECT_EQ(server.requests().size(), 3u);
}

TEST(HttpScorerTest, TriesAreBounded) {
  ScriptedServer server({Response(500, "a"), Response(500, "b"), Response(500, "c")});
  EXPECT_EQ(BothErrors(ScoreTwo(Http(server.Url(), 20, 2))),
            StrCat("scorer ", server.Url(), ": HTTP status 500: b"));
  EXPECT_EQ(server.requests().size(), 2u);
}

TEST(HttpScorerTest, AClientErrorIsNot) {
  ScriptedServer server({Response(422, "no\nfield"), Response(200, R"({"scores": [1, 2]})")});
  EXPECT_EQ(BothErrors(ScoreTwo(Http(server.Url()))),
            StrCat("scorer ", server.Url(), ": HTTP status 422: no?field"));
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(HttpScorerTest, ARedirectIsAnError) {
  ScriptedServer server({"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"});
  EXPECT_NE(BothErrors(ScoreTwo(Http(server.Url()))).find("HTTP status 302"), std::string::npos);
}

TEST(HttpScorerTest, AConnectionThatBreaksIsTriedAgain) {
  ScriptedServer server({"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"sco",
                         Response(200, R"({"scores": [1, 2]})")});
  EXPECT_EQ(ScoreTwo(Http(server.Url()))[1].reward, 2);
}

TEST(HttpScorerTest, Garbage) {
  for (const char* body : {"", "scores", "[1, 2]", R"({"scores": 1})", R"({"rewards": [1, 2]})"}) {
    ScriptedServer server({Response(200, body)});
    EXPECT_NE(BothErrors(ScoreTwo(Http(server.Url()))).find("is not {\"scores\": [...]}"),
              std::string::npos)
        << body;
  }
  ScriptedServer server({"what?\r\n\r\n"});
  EXPECT_NE(BothErrors(ScoreTwo(Http(server.Url(), 20, 1))), "");
}

TEST(HttpScorerTest, WrongNumberOfScores) {
  ScriptedServer server({Response(200, R"({"scores": [1]})")});
  EXPECT_EQ(BothErrors(ScoreTwo(Http(server.Url()))),
            StrCat("scorer ", server.Url(), ": the reply has 1 scores for 2 completions"));
}

TEST(HttpScorerTest, ABadScoreDoesNotTakeItsNeighbourAlong) {
  for (const char* bad : {"NaN", "Infinity", "null", "\"1\"", "true", "[]", "{}"}) {
    ScriptedServer server({Response(200, StrCat("{\"scores\": [", bad, ", 0.25]}"))});
    const auto scores = ScoreTwo(Http(server.Url()));
    EXPECT_NE(scores[0].error.find("not a finite number"), std::string::npos) << bad;
    EXPECT_EQ(scores[1].error, "");
    EXPECT_EQ(scores[1].reward, 0.25);
  }
  ScriptedServer server({Response(200, R"({"scores": [{"error": "too odd"}, 1]})")});
  EXPECT_EQ(ScoreTwo(Http(server.Url()))[0].error, "the scorer says: too odd");
}

TEST(HttpScorerTest, AServerThatNeverAnswers) {
  ScriptedServer server({""});
  EXPECT_EQ(BothErrors(ScoreTwo(Http(server.Url(), 0.3))),
            StrCat("scorer ", server.Url(), ": no reply within 0.3 s"));
}

TEST(HttpScorerTest, AServerThatStopsHalfWay) {
  // The client leaves at its deadline; the second connection finds the scorer still good.
  asio::io_context io;
  tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  std::thread server([&] {
    for (int i = 0; i < 2; ++i) {
      tcp::socket socket = acceptor.accept();
      boost::system::error_code error;
      boost::beast::flat_buffer buffer;
      http::request<http::string_body> request;
      http::read(socket, buffer, request, error);
      const std::string whole = Response(200, R"({"scores": [1, 2]})");
      asio::write(socket, asio::buffer(whole, i == 0 ? whole.size() - 3 : whole.size()), error);
      char byte;
      asio::read(socket, asio::buffer(&byte, 1), error);
    }
  });
  const auto scorer =
      MakeScorer(Http(StrCat("http://localhost:", acceptor.local_endpoint().port()), 2));
  const std::vector<ScoreInput> inputs(2);
  EXPECT_NE(scorer->ScoreBatch(inputs)[0].error.find("no reply within 2 s"), std::string::npos);
  EXPECT_EQ(scorer->ScoreBatch(inputs)[1].reward, 2);
  server.join();
}

TEST(HttpScorerTest, AReplyWithoutEnd) {
  ScriptedServer server(
      {StrCat("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", std::string(17 << 20, ' '))});
  EXPECT_NE(BothErrors(ScoreTwo(Http(server.Url()))).find("more than 16777216 bytes"),
            std::string::npos);
}

TEST(HttpScorerTest, NobodyListens) {
  unsigned short port = 0;
  {
    asio::io_context io;
    port = tcp::acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0))
               .local_endpoint()
               .port();
  }
  EXPECT_NE(
      BothErrors(ScoreTwo(Http(StrCat("http://127.0.0.1:", port), 20, 2))).find("cannot connect: "),
      std::string::npos);
}

TEST(HttpScorerTest, BadUrlsAreNamed) {
  for (const char* url :
       {"https://host/", "host/score", "http://", "http://host:0/", "http://host:x/",
        "http://host:65536/", "http://a b/", "http://user@host/", "http://[::1/", "http://[::1]x/",
        "http://host:/", "http://h\u00f6st/"}) {
    try {
      MakeScorer(Http(url));
      ADD_FAILURE() << url << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(url), std::string::npos) << error.what();
    }
  }
  for (const char* url : {"http://host", "http://host:8000", "http://[::1]:8000/x", "http://h?q"})
    EXPECT_NO_THROW(MakeScorer(Http(url))) << url;
}

}  // namespace
}  // namespace rollcast
