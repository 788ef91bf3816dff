// The routes of kept samples: /v1/samples. Layer: server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "openai/field_reader.h"
#include "openai/kept_request.h"
#include "server/call.h"
#include "server/generation_routes.h"
#include "server/route_context.h"
#include "server/router.h"
#include "server/sample_store.h"

namespace coppice::server {

// Thread-safe.
class SampleRoutes {
 public:
  // All outlive it.
  SampleRoutes(RouteContext* context, GenerationRoutes* generations, SampleStore* samples)
      : context_(*context), generations_(*generations), samples_(*samples) {}

  std::vector<Route> Routes();

 private:
  using Group = openai::KeptRequest::Group;
  struct Verb;

  void Get(const std::shared_ptr<Call>& call);
  void Delete(const std::shared_ptr<Call>& call);
  void Fork(const std::shared_ptr<Call>& call);
  void Extend(const std::shared_ptr<Call>& call);
  void Prune(const std::shared_ptr<Call>& call);

  // The sample that the call's path names. nullopt, with the answer given: there is none for this key and salt.
  std::optional<SampleStore::Sample> Find(const std::shared_ptr<Call>& call, const std::string& salt);
  // Likewise, with the salt in the query.
  std::optional<SampleStore::Sample> Find(const std::shared_ptr<Call>& call);
  // Reads a verb's body by `take`; false, with the answer given, where it cannot be read, or where `take` says so: it has answered,
  // unless a field is wrong.
  bool ReadBody(const std::shared_ptr<Call>& call, const std::function<bool(openai::FieldReader&)>& take);
  // Takes what a fork and an extension both have; false where the salt is none, or, with the answer given, there is no such sample.
  bool TakeVerb(const std::shared_ptr<Call>& call, openai::FieldReader& fields, Verb* verb);
  // Whether the answer may be that large, and the key has tokens and places for it; else the answer was given. `keep_tokens`: of a
  // fork. Adds to `verb->tokens` those of the sample.
  bool Admit(const std::shared_ptr<Call>& call, std::optional<int32_t> keep_tokens, Verb* verb);
  // The engine refused what was admitted.
  void Refuse(const std::shared_ptr<Call>& call, const Status& refusal);
  // Answers with what the sample is now; `num_tokens`: with its first ones alone.
  void Show(const std::shared_ptr<Call>& call, const SampleStore::Sample& sample, std::optional<int32_t> num_tokens = {});
  // Answers with what the group generates.
  void Answer(const std::shared_ptr<Call>& call, Verb verb, const std::shared_ptr<Group>& group);

  RouteContext& context_;
  GenerationRoutes& generations_;
  SampleStore& samples_;
};

}  // namespace coppice::server
