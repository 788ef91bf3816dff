// The bytes of a connection as HTTP requests (RFC 9112): the head, then the body as it comes, and what is refused with which
// status. Knows no sockets and waits for nothing, so that it can be fuzzed; http_session.h feeds it. Layer: server.
#pragma once

#include <boost/beast/http.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace coppice::server {

// One request; the next one on a connection needs a parser of its own. Not thread-safe.
class HttpRequestParser {
 public:
  enum class State : uint8_t {
    kHead,     // the head is not complete: more bytes are needed
    kHasHead,  // it is; AcceptBody comes next
    kBody,     // more bytes of the body are needed
    kDone,     // the request is complete
    kRefused,  // no request, or one too large: refusal() says it, and what follows on the connection means nothing
  };
  struct Refusal {
    int status = 400;
    std::string message;
  };

  explicit HttpRequestParser(size_t max_header_bytes);

  // Takes what it can of `bytes`: all that has come and was not taken before. Returns how many were taken; what the state leaves,
  // the next request, say, is the caller's to keep. REQUIRES: state() is kHead or kBody.
  size_t Put(std::string_view bytes);
  // The body may have so many bytes; more are refused with 413. REQUIRES: state() is kHasHead.
  void AcceptBody(uint64_t max_bytes);

  State state() const { return state_; }
  const Refusal& refusal() const { return refusal_; }

  // From kHasHead on:
  HttpRequest Head() const;  // without the body, and without what only a connection knows: id and peer
  unsigned version() const { return parser_.get().version(); }  // 10 or 11
  bool keep_alive() const { return parser_.get().keep_alive(); }
  bool waits_for_continue() const;  // its sender waits for word that the body may come
  // Bytes of the body; nothing: it ends with the connection.
  std::optional<uint64_t> body_bytes() const;
  // Bytes of the body that have come and were not taken out yet. May be cleared or moved from between two Puts.
  std::string& body() { return parser_.get().body(); }

 private:
  // Does `work`; where the system refuses memory, the request is refused with 503.
  template <class Work>
  void TakeMemory(const Work& work);
  size_t Parse(std::string_view bytes);
  // Whether these bytes of a body cannot be looked at yet.
  bool NeedsMore(std::string_view bytes) const;

  // A body that is appended to as it comes, and nothing else: the caller may take it out in pieces. Its memory grows with what has
  // come, whatever length was announced.
  struct AppendedBody {
    using value_type = std::string;
    class reader {
     public:
      template <bool is_request, class Fields>
      reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}
      void init(const boost::optional<uint64_t>&, boost::beast::error_code& error) { error = {}; }
      template <class Buffers>
      size_t put(const Buffers& buffers, boost::beast::error_code& error) {
        error = {};
        size_t size = 0;
        for (const boost::asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
          body_.append(static_cast<const char*>(buffer.data()), buffer.size());
          size += buffer.size();
        }
        return size;
      }
      void finish(boost::beast::error_code& error) { error = {}; }

     private:
      value_type& body_;
    };
  };

  void Refuse(int status, std::string message);
  void RefuseTooLarge();
  void RefuseBecauseOf(const boost::beast::error_code& error);

  const size_t max_header_bytes_;
  uint64_t max_body_bytes_ = 0;
  bool body_begun_ = false;
  State state_ = State::kHead;
  Refusal refusal_;
  boost::beast::http::request_parser<AppendedBody> parser_;
};

}  // namespace coppice::server
