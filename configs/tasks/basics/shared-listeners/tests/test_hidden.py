from events import Bus, Handler


def test_buses_are_independent():
    first, second, heard = Bus("a"), Bus("b"), []
    first.on("x", heard.append)
    assert second.emit("x", 1) == 0
    assert heard == []
    assert first.emit("x", 2) == 1
    assert heard == [2]


def test_tags_are_independent():
    bus = Bus()
    one = bus.on("x", print).tag("slow")
    other = bus.on("y", print)
    assert one.tags == ["slow"]
    assert other.tags == []


def test_given_tags_are_copied():
    mine = ["audit"]
    handler = Handler(print, mine).tag("late")
    assert handler.tags == ["audit", "late"]
    assert mine == ["audit"]
    assert Handler(print, tags=["only"]).tags == ["only"]


def test_handlers_can_still_be_removed():
    bus, heard = Bus(), []
    handler = bus.on("x", heard.append)
    bus.off("x", handler)
    assert bus.emit("x", 1) == 0 and heard == []


def test_order_and_history():
    bus, heard = Bus(), []
    bus.on("x", lambda value: heard.append(("first", value)))
    bus.on("x", lambda value: heard.append(("second", value)))
    bus.emit("x", 1)
    bus.emit("nobody")
    assert heard == [("first", 1), ("second", 1)]
    assert bus.history == ["x", "nobody"]


def test_subclass_buses_are_independent_too():
    class Quiet(Bus):
        pass

    first, second = Quiet(), Quiet()
    first.on("x", print)
    assert second.handlers == {}
