"""A request router of Ray Serve that sends prompts which begin alike to one replica while that one has no more than its share of requests.

    @serve.deployment(request_router_config=RequestRouterConfig(request_router_class="coppice_llm.ray_router:PrefixRouter",
                                                                request_router_kwargs={"bound": 1.25}))

A request's name is the model id of its handle (`handle.options(multiplexed_model_id=name)`): a hash of how its prompt begins, such as
examples/python/ray_serve.py has it. Each handle counts its own requests, so that with several of them each is bounded.
docs/many_machines.md explains more.
"""

from __future__ import annotations

from ._bounded_hash import BoundedHash

try:
    from ray.serve.request_router import RequestRouter
    RequestRouter.on_request_completed  # noqa: B018  # pylint: disable=pointless-statement
except (ImportError, AttributeError):
    raise ImportError("Ray Serve is missing or has no request routers that hear of requests' ends: pip install 'ray[serve]>=2.60'") from None


class PrefixRouter(RequestRouter):
    """By the hash of a request's name, with bounded loads; `bound`: requests of a replica over those of all in the mean."""

    def initialize_state(self, bound=1.25):
        self._hash = BoundedHash(bound)

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # where no replica takes it
        request = pending_request.metadata.internal_request_id
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        self._hash.end(request)  # an attempt that found no room
        order = self._hash.order(pending_request.metadata.multiplexed_model_id, list(replicas))
        # It counts before it is sent: others are routed meanwhile.
        self._hash.take(request, order[0])
        pending_request.future.add_done_callback(lambda future: self._hash.end(request) if future.cancelled() else None)
        return [[replicas[place]] for place in order]

    def on_request_routed(self, pending_request, replica_id, result):
        self._hash.take(pending_request.metadata.internal_request_id, replica_id.unique_id)

    def on_request_completed(self, replica_id, internal_request_id):
        self._hash.end(internal_request_id, replica_id.unique_id)
