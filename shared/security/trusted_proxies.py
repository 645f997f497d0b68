"""The addresses of proxies that are trusted: many callers come from them. Standard library only."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network


class TrustedProxies:
    """Addresses and networks (`10.0.0.7`, `10.0.0.0/8`, `fd00::/8`).

    `address in proxies` tells whether an IP address is among them; what is no IP address is not.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raises ValueError for what is neither an address nor a network."""
        self._networks = tuple(ip_network(network) for network in networks)

    def __contains__(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            parsed = plain_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def plain_address(address: str) -> IPv4Address | IPv6Address:
    """The IP address; an IPv4 one also where a port for both shows it as `::ffff:10.0.0.7`. Raises ValueError."""
    parsed = ip_address(address)
    return getattr(parsed, "ipv4_mapped", None) or parsed


NO_PROXIES = TrustedProxies()
