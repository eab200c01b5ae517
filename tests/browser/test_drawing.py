"""What the page's modules draw of given records, without a session behind them."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens

STORY = """
async () => {
  const { ConversationView } = await import("/inspector/conversation.js");
  const { Transcript } = await import("/inspector/transcript.js");
  const entry = (id, kind, extra = {}) => ({
    id, conv: 9, kind, commitEnd: id, meta: {},
    payload: kind === "summary" ? { v: 1, text: "S" } : kind === "user"
      ? { v: 1, messages: [{ role: "user", content: [{ type: "text", text: `u${id}` }] }] }
      : { v: 1, message: { role: "assistant", stop: "stop", content: [{ type: "text", text: `a${id}` }] } },
    ...extra,
  });
  // u1 a1 u2 a2 | u3 a3 S, and S stands for everything up to a1 (harness design, 15.6).
  const all = [entry(1, "user"), entry(2, "assistant"), entry(3, "user"), entry(4, "assistant"),
    entry(23, "user"), entry(25, "assistant"), entry(26, "summary", { through: 2, commitEnd: 28 })];
  const view = new ConversationView("s", "9", null);
  view.state = { id: 9 };
  view.context = new Set([26, 3, 4, 23, 25]);
  view.entries = new Map(all.slice(4).map((one) => [one.id, one]));
  view.summaries.set(26, all[6]);
  view.hasOlder = true;
  view.more = async () => {
    const first = [...view.entries.keys()][0];
    const at = all.findIndex((one) => one.id === first);
    const fresh = all.slice(Math.max(0, at - 2), at);
    view.entries = new Map([...fresh, ...view.entries.values()].map((one) => [one.id, one]));
    view.hasOlder = at > 2;
    return fresh;
  };
  const transcript = new Transcript(view);
  document.getElementById("main").replaceChildren(transcript.element);
  const order = () => [...transcript.element.querySelectorAll(".entry")].map((one) => one.dataset.entry).join(" ");
  const seen = [order()];
  await transcript.load("older");
  seen.push(order());
  await transcript.load("older");
  seen.push(order());
  const out = [...transcript.element.querySelectorAll(".entry[data-out] .removal")].map((one) => one.textContent);
  return { seen, out };
}
"""


@pytest.mark.spec("WT-11", "WT-12", "WT-13", "WB-27")
def test_a_summary_is_drawn_right_after_what_it_covers(opens: Opens) -> None:
    window = opens()
    window.open()
    drawn = window.page.evaluate(STORY)
    assert drawn["seen"] == ["26 23 25", "26 3 4 23 25", "1 2 26 3 4 23 25"]
    assert drawn["out"] == ["not in the context: summed up in #26 by commit 28"] * 2
    window.check()


@pytest.mark.spec("WB-14")
def test_numbers_keep_their_digits_on_the_page(opens: Opens) -> None:
    window = opens()
    window.open()
    written = window.page.evaluate(
        """async () => {
          const { parse, written } = await import("/inspector/json.js");
          return written(parse('{"a":9007199254740993,"b":[-7108510333361982070,18446744073709551616,0.5],"c":1e400,"d":-0.0}'));
        }"""
    )
    assert written.split() == ['{', '"a":', '9007199254740993,', '"b":', '[', '-7108510333361982070,', '18446744073709551616,', '0.5', '],', '"c":', '1e400,', '"d":', '-0.0', '}']  # fmt: skip


@pytest.mark.spec("AQ-05")
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":[{"c":"x,y{}[]\\"\\n"},[]],"d":{}}',
        "{}",
        '{"long":"' + "word\\n" * 2000 + '"}',
        '{"a":"\\\\","b":"\\\\\\"n","c":"é\U0001f600"}',
    ],
)
def test_arguments_laid_out_are_still_the_same_text(opens: Opens, text: str) -> None:
    window = opens()
    window.open()
    shown = window.page.evaluate(
        """async (text) => (await import("/inspector/text.js")).argumentsOf(text).textContent""",
        text,
    )
    assert shown == text


@pytest.mark.spec("WB-28")
def test_the_timeline_shows_phases_and_a_kill(opens: Opens) -> None:
    window = opens()
    window.open()
    bars, gaps = window.page.evaluate(
        """async () => {
          const { bars, gaps } = await import("/inspector/timeline.js");
          const at = (timestamp, ...changes) => ({ timestamp, writes: changes.map((change) => ({ seq: change.seq, change })) });
          return [bars([
            at(10, { seq: 5, k: "ins_task", kind: "tool", status: "planned", state: { name: "pay" } }),
            at(20, { seq: 6, k: "set", id: 5, status: "running" }),
            at(50, { seq: 7, k: "set", id: 5, status: "waiting" }),
            at(90, { seq: 8, k: "settle", id: 5, status: "done" }),
          ])[0].phases, gaps([
            { epoch: 2, openedMs: 70, closedMs: null }, { epoch: 1, openedMs: 0, closedMs: 60 }, { epoch: 3, openedMs: 95, closedMs: null }])];
        }"""
    )
    assert bars == [
        {"role": "planned", "from": 10, "to": 20},
        {"role": "working", "from": 20, "to": 50},
        {"role": "waiting", "from": 50, "to": 90},
    ]
    assert gaps == [{"from": 60, "to": 70, "isKill": False}, {"from": 95, "to": 95, "isKill": True}]


def test_a_sentence_about_time_says_one_unit(opens: Opens) -> None:
    window = opens()
    window.open()
    said = window.page.evaluate(
        """async () => { const { span } = await import("/inspector/words.js");
        return [0, 999, 1000, 61_000, 3_600_000, 90_000_000].map(span); }"""
    )
    assert said == ["0 ms", "999 ms", "1 s", "1 min", "1 h", "1 d"]
    expect(window.page.locator("h1")).to_be_visible()
