// Which connections there are, and which one gives its place up where none is left: one that waits for its client (silent, idle, in
// the middle of a request), of the peer that has the most. So no peer keeps another one out by connections on which nothing
// happens. Knows no sockets. Layer: server.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace coppice::server {

// Thread-safe.
class ConnectionTable {
 public:
  class Place;

  explicit ConnectionTable(int32_t places) : places_(places) {}
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // A place for a connection of `peer`, which keeps it until CloseBy; null: all are taken, and none of them may be given to it.
  // Where another connection loses its place for this one, its `close` has been called, with a lock held; afterwards its Place does
  // nothing. `is_proxy`: there are many clients behind it, and it never loses a place.
  std::unique_ptr<Place> Enter(std::string peer, bool is_proxy);
  int32_t size() const;

 private:
  struct Connection;
  struct Peer {
    int32_t connections = 0;
    std::list<Connection*> waiting;  // those that may lose their places; the one that has waited longest is the first
  };
  struct Connection {
    bool open = false;  // has a place
    bool is_proxy = false;
    bool waits = false;  // and may lose its place
    std::map<std::string, Peer>::iterator peer;
    std::list<Connection*>::iterator position;  // of its peer's list, where it waits
    std::function<void()> close;
  };

  // All with the lock held.
  void SetWaits(Connection* connection, bool waits);
  void SetConnections(Peer* peer, int32_t connections);
  void Leave(Connection* connection);
  // The one whose place a connection of `peer` may have; null: none.
  Connection* Longest(const std::string& peer, bool is_proxy) const;

  const int32_t places_;
  mutable std::mutex mutex_;
  int32_t size_ = 0;
  std::map<std::string, Peer> peers_;                  // those with connections
  std::set<std::pair<int32_t, Peer*>> peers_by_size_;  // those with connections that may lose their places, by all that they have
};

// A connection's; leaves it when it is destroyed. The table outlives it.
class ConnectionTable::Place {
 public:
  Place(ConnectionTable* table, std::unique_ptr<Connection> connection) : table_(*table), connection_(std::move(connection)) {}
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // How the connection learns that it has lost its place: `close` is called once at most, on any thread, and never after the Place
  // is gone.
  void CloseBy(std::function<void()> close);
  // From now on the connection waits for its client, which has just done something.
  void WaitsForClient();
  // From now on the server works for it: it keeps its place.
  void WorksForClient();

 private:
  friend class ConnectionTable;
  ConnectionTable& table_;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace coppice::server
