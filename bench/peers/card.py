"""The network card of this host."""


def sent_and_received():
    """Bytes since the host came up; zeros where there is no eth0, as outside an emulated cluster."""
    with open("/proc/net/dev") as file:
        for line in file:
            name, _, figures = line.partition(":")
            if name.strip() == "eth0":
                received, sent = figures.split()[0], figures.split()[8]
                return int(sent), int(received)
    return 0, 0
