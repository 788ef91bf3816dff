#include "server/connection_table.h"

#include <utility>

namespace coppice::server {

ConnectionTable::Place::~Place() {
  const std::lock_guard lock(table_.mutex_);
  table_.Leave(connection_.get());
}

void ConnectionTable::Place::CloseBy(std::function<void()> close) {
  const std::lock_guard lock(table_.mutex_);
  table_.SetWaits(connection_.get(), false);
  connection_->close = std::move(close);
}

void ConnectionTable::Place::WaitsForClient() {
  const std::lock_guard lock(table_.mutex_);
  table_.SetWaits(connection_.get(), true);
}

void ConnectionTable::Place::WorksForClient() {
  const std::lock_guard lock(table_.mutex_);
  table_.SetWaits(connection_.get(), false);
}

int32_t ConnectionTable::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

std::unique_ptr<ConnectionTable::Place> ConnectionTable::Enter(std::string peer, bool is_proxy) {
  auto place = std::make_unique<Place>(this, std::make_unique<Connection>());  // before the lock, which its end takes
  Connection& connection = *place->connection_;
  const std::lock_guard lock(mutex_);
  if (size_ >= places_) {
    Connection* const longest = Longest(peer, is_proxy);
    if (!longest) return nullptr;
    longest->close();
    Leave(longest);
  }
  connection.peer = peers_.try_emplace(std::move(peer)).first;
  connection.is_proxy = is_proxy;
  SetConnections(&connection.peer->second, connection.peer->second.connections + 1);
  ++size_;
  connection.open = true;
  return place;
}

ConnectionTable::Connection* ConnectionTable::Longest(const std::string& peer, bool is_proxy) const {
  if (peers_by_size_.empty()) return nullptr;
  const auto& [most, largest] = *peers_by_size_.rbegin();
  const auto own = peers_.find(peer);
  // It takes nothing from those that have less.
  if (is_proxy || own == peers_.end() || most > own->second.connections) return largest->waiting.front();
  return own->second.waiting.empty() ? nullptr : own->second.waiting.front();
}

void ConnectionTable::SetWaits(Connection* connection, bool waits) {
  if (!connection->open || connection->is_proxy || !connection->close) return;
  Peer& peer = connection->peer->second;
  if (connection->waits && waits) return peer.waiting.splice(peer.waiting.end(), peer.waiting, connection->position);
  if (connection->waits == waits) return;
  if (waits) {
    connection->position = peer.waiting.insert(peer.waiting.end(), connection);
    if (peer.waiting.size() == 1) peers_by_size_.emplace(peer.connections, &peer);
  } else {
    peer.waiting.erase(connection->position);
    if (peer.waiting.empty()) peers_by_size_.erase({peer.connections, &peer});
  }
  connection->waits = waits;
}

void ConnectionTable::SetConnections(Peer* peer, int32_t connections) {
  auto place = peers_by_size_.extract({peer->connections, peer});  // goes back without memory of its own
  peer->connections = connections;
  if (place.empty()) return;
  place.value().first = connections;
  peers_by_size_.insert(std::move(place));
}

void ConnectionTable::Leave(Connection* connection) {
  if (!connection->open) return;
  SetWaits(connection, false);
  connection->open = false;
  --size_;
  SetConnections(&connection->peer->second, connection->peer->second.connections - 1);
  if (connection->peer->second.connections == 0) peers_.erase(connection->peer);
}

}  // namespace coppice::server
