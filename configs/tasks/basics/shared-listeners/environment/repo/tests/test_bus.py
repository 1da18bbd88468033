from events import Bus


def test_emit():
    bus = Bus()
    heard = []
    bus.on("saved", heard.append)
    assert bus.emit("saved", 1) == 1
    assert heard == [1]
