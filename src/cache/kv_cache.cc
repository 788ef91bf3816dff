#include "cache/kv_cache.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "core/math.h"

namespace coppice {
Result<std::unique_ptr<KvCache>> KvCache::Create(const Options& options) {
  auto pool = std::make_unique<PagePool>(options.num_pages, options.page_size);
  auto tree = std::make_unique<PrefixTree>(pool.get());
  COPPICE_ASSIGN_OR_RETURN(BranchForest forest,
                           BranchForest::Create(tree.get(), {.max_branches = options.max_branches,
                                                             .pages_per_branch = CeilDiv(options.max_context, options.page_size),
                                                             .page_size = options.page_size}));
  return std::unique_ptr<KvCache>(new KvCache(options, std::move(pool), std::move(tree), std::move(forest)));
}

KvCache::KvCache(const Options& options, std::unique_ptr<PagePool> pool, std::unique_ptr<PrefixTree> tree, BranchForest forest)
    : options_(options),
      page_(options.page_size),
      pool_(std::move(pool)),
      tree_storage_(std::move(tree)),
      pages_(*pool_),
      tree_(*tree_storage_),
      forest_(std::move(forest)),
      branches_(options.max_branches),
      places_(options.max_branches),
      copied_pages_(pool_.get()),
      pins_(this) {
  copied_pages_.SetInUse(true);
  free_branches_.reserve(options.max_branches);
  Clear();
}

void KvCache::Clear() {
  free_branches_.clear();
  for (BranchId b = options_.max_branches - 1; b >= 0; --b) {
    branches_[b] = {};
    places_[b] = {};
    free_branches_.push_back(b);
  }
  pins_.Clear();
  copied_pages_.DropFrom(0);
  tree_.Clear();
  pages_.Clear();
  forest_.Clear();
  pending_copies_.clear();
  prefills_.clear();
  pages_unshared_ = own_tokens_ = 0;
}

KvCache::Overlap KvCache::FindOverlap(std::span<const int32_t> tokens, const CacheSalt& salt_text,
                                      PrefixTree::Cursor* cursor) const {
  if (!options_.share) return {};
  const SaltRange salt = salts_.Find(salt_text);  // of an unknown salt nothing private is cached
  const PrefixTree::Match match = tree_.FindFrom(cursor, tokens, salt);
  NodeId node = match.node;
  while (node != kRootNode && !forest_.LeadsToBranches(node)) node = tree_.node(node).parent;
  return {.cached = match.length, .running = std::min(match.length, tree_.node(node).end()), .ready = match.ready};
}

KvCache::Admission KvCache::Admit(const AdmitArgs& args) {
  const int32_t num_tokens = static_cast<int32_t>(args.tokens.size());
  COPPICE_CHECK(num_tokens >= 1 && num_tokens <= options_.max_context);
  if (free_branches_.empty()) return {};
  const SaltRange salt = Intern(args.salt);

  PrefixTree::Match match;
  PrefixTree::Cursor from_root;
  if (options_.share) match = tree_.FindFrom(args.cursor != nullptr ? args.cursor : &from_root, args.tokens, salt);
  if (match.due < match.length) return {.outcome = Outcome::kPending};
  const NodeId above = Split(match);
  NodeLock lock(&tree_, above);  // before anything is evicted for the branch

  // A page that is still written to in this step cannot be copied before it: its tokens are computed once more instead.
  const int32_t page_size = pages_.page_size();
  const bool is_due = match.computed < match.length;
  const bool ends_inside = match.length % page_size != 0 && match.length < num_tokens;
  const bool copies_page = ends_inside && !is_due;
  const int32_t found = ends_inside && is_due ? match.length / page_size * page_size : match.length;
  const int32_t first_fresh = CeilDiv(found, page_size), end_page = CeilDiv(num_tokens, page_size);
  const int32_t new_pages = end_page - first_fresh + copies_page;
  if (new_pages + args.spare_pages > pages_.num_pages() - pages_.num_in_use()) return {};
  PageRefs new_path(&pages_);
  bool have_pages = true;
  if (copies_page) have_pages = ContinuePage(tree_.node(above).pages.back(), match.length, &new_path);
  have_pages = have_pages && AppendFreshPages(first_fresh, end_page, &new_path);
  COPPICE_CHECK(have_pages);  // counted above: every page that is not in use can be had by evicting

  const BranchId id = TakeBranch();
  Branch& branch = branches_[id];
  Place& place = places_[id];
  branch.cached = found;
  branch.computed = std::min({found, num_tokens - 1, args.compute_from});
  const bool recomputes = args.compute_from < match.length;
  if (options_.share) {
    const auto rest = args.tokens.subspan(match.length);
    lock = NodeLock(&tree_, AddPath(above, rest, match.length, salt, std::move(new_path), match.length));
  } else {
    branch.own_pages.Append(std::move(new_path));
  }
  place = {.lock = std::move(lock), .salt = salt, .joins_at = recomputes || is_due ? match.length : 0};
  SetExtent(&branch, options_.share ? num_tokens : 0, num_tokens);
  branch.capacity = num_tokens;
  FillRow(id);
  NodeId joined = place.lock.node();
  if (place.joins_at > 0) {  // tokens computed before this step are read with all branches, those behind them alone
    joined = Split(tree_.Find(args.tokens.first(std::min(match.computed, branch.computed)), salt));
  }
  forest_.Link(id, joined, branch.computed);
  hit_tokens_ += branch.cached;
  tree_.CountHit(above);
  return {.outcome = Outcome::kAdmitted, .branch = id, .cached = branch.cached, .computed = branch.computed};
}

BranchId KvCache::Fork(BranchId parent_id, int32_t kv_len) {
  if (free_branches_.empty()) return kNoBranch;
  const Branch& parent = branches_[parent_id];
  // All of the parent, as it was admitted: nothing is cut, so what is launched suffices.
  COPPICE_CHECK(parent.in_use &&
                (kv_len <= parent.computed || (kv_len == parent.kv_len && (parent.own_pages.empty() || !options_.share))));
  NodeId node = places_[parent_id].lock.node();
  const int32_t own_begin = std::min(parent.own_begin, kv_len);
  PageRefs pages(&pages_);
  if (own_begin < kv_len) {
    const std::span<const PageId> of_parent = parent.own_pages.ids();
    const int32_t first = page_.Floor(own_begin), whole = options_.share ? page_.Floor(kv_len) - first : 0;
    pages.Share(of_parent.first(static_cast<size_t>(whole)));
    if (!AppendFreshPages(first + whole, page_.Ceil(kv_len), &pages)) return kNoBranch;
    for (auto i = static_cast<size_t>(whole); i < pages.size(); ++i)
      pending_copies_.push_back({.from = of_parent[i], .to = pages[i]});
    copied_pages_.Share(of_parent.subspan(static_cast<size_t>(whole), pages.size() - static_cast<size_t>(whole)));
  } else {
    while (node != kRootNode && tree_.node(node).begin >= kv_len) node = tree_.node(node).parent;
    node = Split({.node = node, .length = kv_len, .due = kv_len, .computed = kv_len, .ready = kv_len});
  }
  const BranchId id = TakeBranch();
  Branch& branch = branches_[id];
  const int32_t joins_at = IsCurrent(parent_id) ? 0 : places_[parent_id].joins_at;  // above 0: it stays apart (CacheStep::Launched)
  places_[id] = {.lock = NodeLock(&tree_, node), .salt = places_[parent_id].salt, .joins_at = joins_at};
  branch.own_pages.Append(std::move(pages));
  branch.computed = std::min(parent.computed, kv_len);
  branch.cached = branch.capacity = kv_len;
  SetExtent(&branch, own_begin, kv_len);
  FillRow(id);
  forest_.Link(id, joins_at > 0 ? kRootNode : node, kv_len);
  return id;
}

bool KvCache::Grow(BranchId id, int32_t kv_len) {
  Branch& branch = branches_[id];
  COPPICE_DCHECK(branch.in_use && kv_len <= options_.max_context);
  const int32_t page_size = page_.value();
  const std::span<PageId> row = forest_.Row(id);
  if (kv_len > branch.capacity && branch.own_pages.empty() && page_.Remainder(branch.own_begin) != 0) {
    PageId& entry = row[page_.Floor(branch.own_begin)];
    if (!ContinuePage(entry, branch.own_begin, &branch.own_pages)) return false;
    if (entry != branch.own_pages.front()) {
      entry = branch.own_pages.front();
      forest_.NoteRowChange(id);
    }
    branch.capacity = (page_.Floor(branch.own_begin) + 1) * page_size;
  }
  while (page_.Ceil(kv_len) > page_.Ceil(branch.capacity)) {
    const int32_t index = page_.Ceil(branch.capacity);
    if (!AppendFreshPages(index, index + 1, &branch.own_pages)) return false;
    row[index] = branch.own_pages.back();
    branch.capacity = (index + 1) * page_size;
  }
  branch.capacity = std::max(branch.capacity, kv_len);
  SetExtent(&branch, branch.own_begin, std::max(branch.own_begin, kv_len));
  return true;
}

void KvCache::SetExtent(Branch* branch, int32_t own_begin, int32_t kv_len) {
  pages_unshared_ += page_.Ceil(kv_len) - page_.Ceil(branch->kv_len);
  own_tokens_ += (kv_len - own_begin) - (branch->kv_len - branch->own_begin);
  branch->own_begin = own_begin;
  branch->kv_len = kv_len;
}

int64_t KvCache::SlotOf(BranchId id, int32_t kv_index) const {
  const Branch& branch = branches_[id];
  COPPICE_DCHECK(branch.in_use && kv_index < branch.kv_len);
  if (kv_index < branch.cached) return -1;
  const int32_t index = page_.Floor(kv_index);
  return int64_t{forest_.Row(id)[index]} * page_.value() + (kv_index - index * page_.value());
}

void KvCache::Publish(BranchId id, std::span<const int32_t> tokens) {
  Branch& branch = branches_[id];
  Place& place = places_[id];
  const auto [begin, end] = Unpublished(id);
  const int32_t page_size = pages_.page_size(), first_page = begin / page_size;
  COPPICE_DCHECK(begin < end && std::cmp_equal(tokens.size(), end - begin) && place.joins_at == 0 && !HasPendingCopies(branch));
  const int32_t num_pages = end / page_size - first_page;
  const NodeId attached = place.lock.node();
  const PrefixTree::Node& node = tree_.node(attached);
  const SaltRange& salt = place.salt;
  const bool one_salt = node.salt == salt.At(begin) && node.salt == salt.At(end - 1);
  if (branch.has_tail && node.num_children == 0 && node.locks == 1 && one_salt) {  // the branch alone is there: it grows
    tree_.Extend(attached, tokens, &branch.own_pages);
  } else {
    const PrefixTree::Match match = tree_.FindBelow(attached, tokens, salt);
    const int32_t merged = match.length / page_size - first_page;
    if (match.ready < match.length) return;  // another branch computes the same: try again at the next token
    PageRefs published(&pages_);
    published.Share(branch.own_pages.ids().subspan(merged, num_pages - merged));
    const NodeId above = Split(match);
    const NodeId leaf = AddPath(above, tokens.subspan(match.length - begin), match.length, salt, std::move(published), end);
    place.lock = NodeLock(&tree_, leaf);
    if (above == attached && tree_.node(leaf).parent == above) {
      forest_.Descend(id, leaf);
    } else {
      forest_.Unlink(id);
      forest_.Link(id, leaf, branch.computed);
    }
    branch.has_tail = true;
    if (merged > 0) {
      // Rows first, then the pages: the next plan reads the rows before any write to pages that are freed below.
      CopyRowOfPath(id, first_page, first_page + merged);
      forest_.NoteRowChange(id);
      merged_pages_ += merged;
    }
    branch.own_pages.DropFront(num_pages);
  }
  SetExtent(&branch, end, branch.kv_len);
}

bool KvCache::HasPendingCopies(const Branch& branch) const {
  return std::ranges::any_of(pending_copies_, [&](const attention::PageCopy& copy) {
    return std::ranges::find(branch.own_pages.ids(), copy.to) != branch.own_pages.ids().end();
  });
}

void KvCache::Release(BranchId id, std::span<const int32_t> tokens) {
  Branch& branch = branches_[id];
  COPPICE_CHECK(branch.in_use);
  COPPICE_DCHECK(tokens.empty() || static_cast<int32_t>(tokens.size()) >= branch.computed);
  forest_.Unlink(id);
  if (options_.share && !tokens.empty() && branch.computed > branch.own_begin && IsCurrent(id))
    KeepOwnTokens(id, tokens.first(branch.computed));
  branch.own_pages.DropFrom(0);
  const NodeId node = places_[id].lock.node();
  places_[id] = {};
  tree_.DropUnready(node);
  tree_.EvictRetired();
  std::erase_if(pending_copies_, [&](const attention::PageCopy& copy) { return pages_.references(copy.to) == 0; });
  SetExtent(&branch, 0, 0);
  branch = {};
  free_branches_.push_back(id);
}

CacheStep KvCache::BeginStep() {
  COPPICE_DCHECK(prefills_.empty());
  forest_.BeginStep();
  return CacheStep(this);
}

KvCache::Usage KvCache::usage() const {
  return {.pages_total = pages_.num_pages(),
          .pages_owned = pages_.num_owned(),
          .pages_in_use = pages_.num_in_use(),
          .pages_unshared = pages_unshared_,
          .tokens_in_use = tree_.locked_tokens() + own_tokens_,
          .hit_tokens = hit_tokens_,
          .merged_pages = merged_pages_};
}

KvCache::PrefixUses KvCache::TopPrefixes(size_t count) const {
  std::vector<PrefixUse> uses(tree_.node_capacity());
  for (const Place& place : places_) {
    for (NodeId n = place.lock.node(); n != kRootNode; n = tree_.node(n).parent) ++uses[n].users;
  }
  for (const auto& [name, lock] : pins_.locks()) {
    for (NodeId n = lock.node(); n != kRootNode; n = tree_.node(n).parent) uses[n].pinned = true;
  }
  for (NodeId n = 1; n < tree_.node_capacity(); ++n) {
    const PrefixTree::Node& node = tree_.node(n);
    if (!node.in_tree) continue;
    uses[n].node = n;
    uses[n].parent = node.parent;
    uses[n].begin = node.begin;
    uses[n].end = node.end();
    uses[n].hits = node.hits;
  }
  std::erase_if(uses, [](const PrefixUse& use) { return use.end == 0; });  // the root and free slots
  const auto before = [](const PrefixUse& a, const PrefixUse& b) {
    return std::tuple(-a.users, !a.pinned, -a.hits, a.begin, -a.end) < std::tuple(-b.users, !b.pinned, -b.hits, b.begin, -b.end);
  };
  const auto keep_top = [&](std::vector<PrefixUse>* list) {
    const auto used = static_cast<size_t>(std::ranges::count_if(*list, [](const PrefixUse& use) { return use.users > 0; }));
    const size_t kept = std::min(std::max(count, used), list->size());
    std::partial_sort(list->begin(), list->begin() + static_cast<std::ptrdiff_t>(kept), list->end(), before);
    list->resize(kept);
  };
  PrefixUses top;
  std::unordered_map<uint32_t, std::vector<PrefixUse>*> lists;  // by salt id, of tenants
  for (const auto& [name, id] : salts_.all()) {
    if (!name.first.empty()) lists[id] = &top.of_tenants[name.first];
  }
  for (const PrefixUse& use : uses) {
    const auto list = lists.find(tree_.node(use.node).salt);
    if (list == lists.end()) continue;
    list->second->push_back(use);
    if (!lists.contains(tree_.node(use.parent).salt)) list->second->back().parent = kRootNode;
  }
  std::erase_if(top.of_tenants, [](const auto& tenant) { return tenant.second.empty(); });
  for (auto& [tenant, list] : top.of_tenants) keep_top(&list);
  keep_top(&uses);
  top.all = std::move(uses);
  return top;
}

void KvCache::DropCached() {
  while (tree_.EvictOne()) {
  }
}

void KvCache::Retire() {
  COPPICE_DCHECK(pins_.empty() && prefills_.empty());
  tree_.Retire();
  DropCached();
}

PageId KvCache::TakePage() {
  for (;;) {
    if (const PageId page = pages_.Allocate(); page != kNoPage) return page;
    if (!tree_.EvictOne()) return kNoPage;
  }
}

bool KvCache::ContinuePage(PageId shared, int32_t begin, PageRefs* pages) {
  PageId page = shared;
  if (pages_.claimed_slots(shared) == begin % pages_.page_size()) {
    pages->Share({&shared, 1});
  } else {
    page = TakePage();
    if (page == kNoPage) return false;
    pending_copies_.push_back({.from = shared, .to = page});
    pages->Adopt(page);
  }
  pages_.set_claimed_slots(page, pages_.page_size());
  return true;
}

bool KvCache::AppendFreshPages(int32_t begin, int32_t end, PageRefs* pages) {
  for (; begin < end; ++begin) {
    const PageId page = TakePage();
    if (page == kNoPage) return false;
    pages_.set_claimed_slots(page, pages_.page_size());
    pages->Adopt(page);
  }
  return true;
}

void KvCache::FillRow(BranchId branch_id) {
  const Branch& branch = branches_[branch_id];
  const std::span<PageId> row = forest_.Row(branch_id);
  const int32_t page_size = pages_.page_size();
  const int32_t own_first = branch.own_begin / page_size;
  std::ranges::copy(branch.own_pages.ids(), row.begin() + own_first);
  CopyRowOfPath(branch_id, 0, branch.own_pages.empty() ? static_cast<int32_t>(row.size()) : own_first);
}

void KvCache::CopyRowOfPath(BranchId branch, int32_t begin, int32_t end) {
  const std::span<PageId> row = forest_.Row(branch);
  // Upwards; where two nodes meet inside a page, the lower one's page holds the tokens of both.
  for (NodeId id = places_[branch].lock.node(); id != kRootNode && begin < end; id = tree_.node(id).parent) {
    const PrefixTree::Node& node = tree_.node(id);
    const int32_t first = node.begin / pages_.page_size();
    const int32_t stop = std::min(end, first + static_cast<int32_t>(node.pages.size()));
    for (int32_t j = std::max(begin, first); j < stop; ++j) row[j] = node.pages[j - first];
    end = std::min(end, first);
  }
}

BranchId KvCache::TakeBranch() {
  const BranchId id = free_branches_.back();
  free_branches_.pop_back();
  branches_[id] = Branch{.in_use = true, .own_pages = PageRefs(&pages_)};
  branches_[id].own_pages.SetInUse(true);
  return id;
}

NodeId KvCache::Split(const PrefixTree::Match& match) {
  const NodeId upper = tree_.SplitAt(match);
  if (upper != match.node) forest_.OnSplit(upper, match.node);
  return upper;
}

NodeId KvCache::AddPath(NodeId above, std::span<const int32_t> tokens, int32_t begin, const SaltRange& salt, PageRefs pages,
                        int32_t ready_end) {
  const int32_t page_size = pages_.page_size();
  const int32_t end = begin + static_cast<int32_t>(tokens.size());
  const int32_t first_token = begin, first_page = begin / page_size;
  if (begin < end) pages_.set_claimed_slots(pages.back(), (end - 1) % page_size + 1);
  while (begin < end) {  // once more for each place inside where the salt changes
    const int32_t stop = std::min(salt.EndOf(begin), end);
    const int32_t part_begin = begin / page_size - first_page, part_end = CeilDiv(stop, page_size) - first_page;
    PageRefs part(&pages_);
    part.Share(pages.ids().subspan(part_begin, part_end - part_begin));
    above = tree_.AddLeaf(above, tokens.subspan(begin - first_token, stop - begin), salt.At(begin), std::move(part),
                          std::clamp(ready_end, begin, stop));
    begin = stop;
  }
  return above;
}

void KvCache::KeepOwnTokens(BranchId id, std::span<const int32_t> tokens) {
  const Branch& branch = branches_[id];
  const Place& place = places_[id];
  const PrefixTree::Match match = tree_.FindBelow(place.lock.node(), tokens.subspan(branch.own_begin), place.salt);
  const int32_t end = static_cast<int32_t>(tokens.size());
  if (match.length == end || match.ready < match.length) return;  // there already, or another branch computes it
  const int32_t page_size = pages_.page_size();
  const int32_t own_first = branch.own_begin / page_size;
  const int32_t first = match.length / page_size - own_first;
  PageRefs pages(&pages_);
  pages.Share(branch.own_pages.ids().subspan(first, CeilDiv(end, page_size) - own_first - first));
  AddPath(Split(match), tokens.subspan(match.length), match.length, place.salt, std::move(pages), end);
}

SaltRange KvCache::Intern(const CacheSalt& salt) {
  if (salts_.is_full()) {
    std::set<uint32_t> alive;
    for (NodeId id = 0; id < tree_.node_capacity(); ++id) alive.insert(tree_.node(id).salt);
    for (const Place& place : places_) alive.insert({place.salt.id, place.salt.tenant_id});
    salts_.ForgetAllBut(alive);
  }
  return salts_.Intern(salt);
}

Status KvCache::CheckIntegrity() const {
  std::vector<int32_t> references(pages_.num_pages()), uses(pages_.num_pages()), direct_locks(tree_.node_capacity());
  COPPICE_RETURN_IF_ERROR(tree_.CheckIntegrity(references, uses));
  COPPICE_RETURN_IF_ERROR(forest_.CheckIntegrity());
  const int32_t page_size = pages_.page_size();
  int64_t pages_unshared = 0, own_tokens = 0;
  for (BranchId id = 0; id < options_.max_branches; ++id) {
    const Branch& branch = branches_[id];
    if (!branch.in_use) continue;
    pages_unshared += CeilDiv(branch.kv_len, page_size);
    own_tokens += branch.kv_len - branch.own_begin;
    const auto broken = [id](const std::string& what) { return Internal("branch " + std::to_string(id) + ": " + what); };
    const NodeId attached = places_[id].lock.node();
    ++direct_locks[attached];
    for (const PageId page : branch.own_pages.ids()) {
      ++references[page];
      ++uses[page];
    }
    const std::span<const PageId> row = forest_.Row(id);
    for (int32_t j = 0; j < static_cast<int32_t>(branch.own_pages.size()); ++j) {
      if (row[branch.own_begin / page_size + j] != branch.own_pages[j])
        return broken("its row does not hold its own page " + std::to_string(j));
    }
    for (NodeId n = attached; n != kRootNode; n = tree_.node(n).parent) {
      for (int32_t kv = tree_.node(n).begin / page_size * page_size; kv < tree_.node(n).end(); kv += page_size) {
        const int32_t j = kv / page_size;
        const PageId page = tree_.node(n).pages[j - tree_.node(n).begin / page_size];
        // Inside a page where a deeper owner took over, the row holds the deeper one's copy.
        const bool whole = (j + 1) * page_size <= tree_.node(n).end();
        if (whole && row[j] != page) return broken("its row does not hold page " + std::to_string(j) + " of its path");
      }
    }
  }
  if (pages_unshared != pages_unshared_ || own_tokens != own_tokens_) return Internal("the sums over branches are wrong");
  for (const PageId page : copied_pages_.ids()) {
    ++references[page];
    ++uses[page];
  }
  for (const auto& [name, lock] : pins_.locks()) ++direct_locks[lock.node()];
  for (NodeId n = 1; n < tree_.node_capacity(); ++n) {
    if (!tree_.node(n).in_tree) continue;
    if (tree_.node(n).locks > 0) ++direct_locks[tree_.node(n).parent];
  }
  for (NodeId n = 1; n < tree_.node_capacity(); ++n) {
    if (tree_.node(n).in_tree && tree_.node(n).locks != direct_locks[n])
      return Internal("prefix tree node " + std::to_string(n) + ": leaked lock");
  }
  return pages_.CheckIntegrity(references, uses);
}

}  // namespace coppice
