"""Which of several servers a request goes to by a name that it bears: rendezvous hashing with bounded loads. Knows no Ray.

A name's requests go to one server, and but for the names of a server that comes or goes all names stay where they are (Thaler and
Ravishankar 1998). A server that has `bound` times the mean of the requests under way is passed over for the next one in the name's order
(Mirrokni, Thorup and Zadimoghaddam 2018).
"""

import hashlib


def _weight(name, place):
    return hashlib.blake2b(f"{name}\0{place}".encode(), digest_size=8).digest()


class BoundedHash:
    """Counts requests under way by place. `bound`: at least 1."""

    def __init__(self, bound=1.25):
        if not bound >= 1:
            raise ValueError(f"bound is {bound}, expected at least 1")
        self._bound = bound
        self._place_of, self._loads = {}, {}

    def load(self, place):
        return self._loads.get(place, 0)

    def order(self, name, places):
        """The places to try for one more request, best first: by the name's hash those below the bound, then the others by load. Without a name all
        are tried by load."""
        most = self._bound * (sum(map(self.load, places)) + 1) / len(places)
        below = [place for place in places if name and self.load(place) < most]
        below.sort(key=lambda place: _weight(name, place), reverse=True)
        return below + sorted(set(places).difference(below), key=lambda place: (self.load(place), place))

    def take(self, request, place):
        """The request is at the place from now on, and nowhere else."""
        self.end(request)
        self._place_of[request] = place
        self._loads[place] = self.load(place) + 1

    def end(self, request, place=None):
        """The request is nowhere; where a place is given, only if it is there."""
        there = self._place_of.get(request)
        if there is None or place not in (None, there):
            return
        del self._place_of[request]
        self._loads[there] -= 1
        if self._loads[there] == 0:
            del self._loads[there]
