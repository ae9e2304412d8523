use super::{KvAction, KvStream, MAX_HELD, StreamTrust};
use KvAction::{Apply, ClearRank, Replay};

type Actions = Vec<KvAction<u64>>;

/// Batches carry their own number.
fn live(stream: &mut KvStream<u64>, numbers: &[u64]) -> Actions {
    numbers.iter().flat_map(|number| stream.live(*number, *number, 8)).collect()
}

fn replayed(stream: &mut KvStream<u64>, numbers: &[u64]) -> Actions {
    numbers.iter().flat_map(|number| stream.replayed(*number, *number)).collect()
}

#[test]
fn without_replay_each_history_means_what_the_table_says() {
    let rows: &[(&str, &[u64], Actions, StreamTrust)] = &[
        ("nothing came", &[], vec![], StreamTrust::Cold),
        ("a stream from its origin is exact", &[0, 1], vec![Apply(0), Apply(1)], StreamTrust::Exact),
        ("a late joiner lists what it hears", &[7, 8], vec![Apply(7), Apply(8)], StreamTrust::Gapped),
        ("a repetition is not applied", &[0, 0], vec![Apply(0)], StreamTrust::Exact),
        (
            "a gap clears, and the batch after it applies",
            &[0, 2],
            vec![Apply(0), ClearRank, Apply(2)],
            StreamTrust::Gapped,
        ),
        ("a huge jump is a gap too", &[1, u64::MAX], vec![Apply(1), ClearRank, Apply(u64::MAX)], StreamTrust::Gapped),
        ("zero again is a restart", &[0, 1, 0], vec![Apply(0), Apply(1), ClearRank, Apply(0)], StreamTrust::Exact),
        (
            "a smaller number is a restart whose start was missed",
            &[9, 3],
            vec![Apply(9), ClearRank, Apply(3)],
            StreamTrust::Gapped,
        ),
    ];
    for (sentence, numbers, actions, trust) in rows {
        let mut stream = KvStream::new(false);
        assert_eq!(live(&mut stream, numbers), *actions, "{sentence}");
        assert_eq!(stream.trust(), *trust, "{sentence}");
    }
}

/// Seen in sgl-project/sglang#32728.
#[test]
fn a_gap_is_counted_with_its_size() {
    let mut stream = KvStream::new(false);
    live(&mut stream, &[1, 2, 5, 6, 10_007]);
    assert_eq!(stream.counters().missing, 2 + 10_000);
}

/// Seen in llm-d/llm-d-router#1737.
#[test]
fn a_gap_is_repaired_by_replay_while_live_batches_wait() {
    let mut stream = KvStream::new(true);
    assert_eq!(live(&mut stream, &[0, 1, 4]), vec![Apply(0), Apply(1), Replay { from: 2 }]);
    assert_eq!(stream.trust(), StreamTrust::Rebuilding);
    assert_eq!(live(&mut stream, &[5]), vec![], "a live batch waits");
    assert_eq!(replayed(&mut stream, &[2]), vec![Apply(2)]);
    assert_eq!(replayed(&mut stream, &[3]), vec![Apply(3), Apply(4), Apply(5)], "the held ones follow in order");
    assert_eq!(stream.trust(), StreamTrust::Exact);
    assert_eq!(replayed(&mut stream, &[4, 5]), vec![], "the rest of the replay repeats what was held");
    assert_eq!(live(&mut stream, &[6]), vec![Apply(6)]);
    assert_eq!((stream.counters().repaired, stream.counters().unrepaired), (1, 0));
}

#[test]
fn a_late_joiner_is_exact_after_a_replay_from_the_origin() {
    let mut stream = KvStream::new(true);
    assert_eq!(live(&mut stream, &[3]), vec![Replay { from: 0 }]);
    assert_eq!(replayed(&mut stream, &[0, 1]), vec![Apply(0), Apply(1)]);
    assert_eq!(replayed(&mut stream, &[2, 3]), vec![Apply(2), Apply(3)], "the replay's 3 repeats the held one");
    assert_eq!(stream.trust(), StreamTrust::Exact);
}

#[test]
fn a_replay_that_overtakes_the_held_batches_applies_each_once() {
    let mut stream = KvStream::new(true);
    live(&mut stream, &[0, 3, 4]);
    assert_eq!(replayed(&mut stream, &[1, 2, 3, 4, 5]), vec![Apply(1), Apply(2), Apply(3), Apply(4)]);
    assert_eq!(live(&mut stream, &[5]), vec![Apply(5)], "a batch that only the replay brought comes live as well");
}

#[test]
fn a_ring_that_begins_later_leaves_the_rank_gapped() {
    let mut stream = KvStream::new(true);
    assert_eq!(live(&mut stream, &[50]), vec![Replay { from: 0 }]);
    assert_eq!(replayed(&mut stream, &[40, 41]), vec![ClearRank, Apply(40), Apply(41)]);
    assert_eq!(stream.replay_ended(), vec![Replay { from: 42 }], "the end came before the held batch was reached");
    assert_eq!(stream.replay_ended(), vec![ClearRank, Apply(50)], "and asking again brought nothing");
    assert_eq!(stream.trust(), StreamTrust::Gapped);
}

/// Seen in vllm-project/vllm#45174.
#[test]
fn a_replay_without_answer_clears_and_goes_on() {
    let mut stream = KvStream::new(true);
    live(&mut stream, &[0, 5, 6]);
    assert_eq!(stream.replay_ended(), vec![ClearRank, Apply(5), Apply(6)]);
    assert_eq!(stream.trust(), StreamTrust::Gapped);
    assert_eq!(stream.counters().unrepaired, 1);
}

#[test]
fn a_restart_during_a_replay_begins_anew() {
    let mut stream = KvStream::new(true);
    live(&mut stream, &[0, 5]);
    assert_eq!(live(&mut stream, &[0]), vec![ClearRank, Apply(0)]);
    assert_eq!(stream.trust(), StreamTrust::Exact);
    assert_eq!(replayed(&mut stream, &[1, 2]), vec![], "what the old replay still brings is void");
}

#[test]
fn held_batches_are_bounded() {
    let mut stream = KvStream::new(true);
    live(&mut stream, &[0, 5]);
    let last_held = 5 + MAX_HELD as u64 - 1;
    let numbers: Vec<u64> = (6..=last_held).collect();
    assert_eq!(live(&mut stream, &numbers), vec![]);
    assert_eq!(live(&mut stream, &[last_held + 1]), vec![ClearRank, Apply(last_held + 1)], "the replay is given up");
    assert_eq!(stream.trust(), StreamTrust::Gapped);
}

#[test]
fn unreadable_batches_clear_and_in_the_end_are_not_believed() {
    let mut stream = KvStream::new(false);
    live(&mut stream, &[0]);
    assert_eq!(stream.read(false), vec![ClearRank]);
    assert_eq!(stream.trust(), StreamTrust::Gapped);
    stream.read(true);
    stream.read(false);
    stream.read(false);
    assert_eq!(stream.trust(), StreamTrust::Gapped, "two in a row");
    stream.read(false);
    assert_eq!(stream.trust(), StreamTrust::Untrusted, "three in a row");
    assert_eq!(live(&mut stream, &[1]), vec![Apply(1)], "batches still apply");
    assert!(!stream.trust().may_match(), "but do not match");
    stream.cleared();
    assert_eq!(stream.trust(), StreamTrust::Exact, "after a clear nothing listed can be wrong");
}

#[test]
fn a_new_connection_begins_anew() {
    let mut stream = KvStream::new(false);
    assert_eq!(stream.reconnected(), vec![], "nothing was listed yet");
    live(&mut stream, &[0, 1]);
    assert_eq!(stream.reconnected(), vec![ClearRank]);
    assert_eq!(stream.trust(), StreamTrust::Cold);
    assert_eq!(live(&mut stream, &[2]), vec![Apply(2)]);
    assert_eq!(stream.trust(), StreamTrust::Gapped);
}

#[test]
fn a_late_joiner_asks_for_everything_as_soon_as_it_is_there() {
    let mut stream = KvStream::new(true);
    assert_eq!(stream.opened(), vec![Replay { from: 0 }]);
    assert_eq!(stream.trust(), StreamTrust::Rebuilding);
    assert_eq!(replayed(&mut stream, &[0, 1]), vec![Apply(0), Apply(1)]);
    assert_eq!(stream.replay_ended(), vec![]);
    assert_eq!(stream.trust(), StreamTrust::Exact);
    assert_eq!(live(&mut stream, &[1, 2]), vec![Apply(2)]);
    assert_eq!(stream.opened(), vec![], "it has joined");
    assert_eq!(KvStream::<u64>::new(false).opened(), vec![], "there is nobody to ask");
}

#[test]
fn a_replay_that_brings_nothing_leaves_a_stream_as_cold_as_it_was() {
    let mut stream = KvStream::new(true);
    stream.opened();
    assert_eq!(stream.replay_ended(), vec![]);
    assert_eq!(stream.trust(), StreamTrust::Cold);
    assert_eq!(live(&mut stream, &[0]), vec![Apply(0)]);
    assert_eq!(stream.trust(), StreamTrust::Exact);
}

#[test]
fn what_became_void_is_asked_for_again() {
    let mut stream = KvStream::new(true);
    live(&mut stream, &[0, 1]);
    assert_eq!(stream.relist(), vec![ClearRank, Replay { from: 0 }]);
    assert_eq!(live(&mut stream, &[2]), vec![]);
    assert_eq!(replayed(&mut stream, &[0, 1]), vec![Apply(0), Apply(1), Apply(2)]);
    assert_eq!(stream.trust(), StreamTrust::Exact);
    let mut without = KvStream::new(false);
    live(&mut without, &[0, 1]);
    assert_eq!(without.relist(), vec![ClearRank]);
    assert_eq!((live(&mut without, &[2]), without.trust()), (vec![Apply(2)], StreamTrust::Gapped));
}

#[test]
fn batches_that_are_held_back_are_bounded_in_bytes() {
    let mut stream = KvStream::new(true);
    stream.opened();
    assert_eq!(stream.live(10, 10, 20 << 20), vec![]);
    assert_eq!(stream.live(11, 11, 20 << 20), vec![ClearRank, Apply(11)]);
    assert_eq!(stream.trust(), StreamTrust::Gapped);
}

#[test]
fn a_second_gap_during_a_replay_is_repaired_by_the_same_or_the_next_one() {
    let mut stream = KvStream::new(true);
    assert_eq!(live(&mut stream, &[0, 2]), vec![Apply(0), Replay { from: 1 }]);
    assert_eq!(live(&mut stream, &[4, 7]), vec![], "3, 5 and 6 are missing as well");
    assert_eq!(stream.counters().missing, 4);
    assert_eq!(replayed(&mut stream, &[1]), vec![Apply(1), Apply(2)]);
    assert_eq!(replayed(&mut stream, &[2, 3]), vec![Apply(3), Apply(4)], "the publisher answered after it had sent 4");
    assert_eq!(stream.replay_ended(), vec![Replay { from: 5 }], "and before it sent 5");
    assert_eq!(stream.trust(), StreamTrust::Rebuilding);
    assert_eq!(replayed(&mut stream, &[5, 6]), vec![Apply(5), Apply(6), Apply(7)]);
    assert_eq!(stream.trust(), StreamTrust::Exact);
    assert_eq!((stream.counters().repaired, stream.counters().unrepaired), (1, 0));
}

#[test]
fn a_publisher_that_is_always_a_little_behind_is_not_asked_for_ever() {
    let mut stream = KvStream::new(true);
    live(&mut stream, &[0, 1_000]);
    let mut num_asked = 1;
    for answered in 1..100 {
        replayed(&mut stream, &[answered]);
        match &stream.replay_ended()[..] {
            [Replay { from }] => assert_eq!(*from, answered + 1),
            actions => {
                assert_eq!(actions, [ClearRank, Apply(1_000)]);
                break;
            }
        }
        num_asked += 1;
    }
    assert_eq!((num_asked, stream.trust()), (4, StreamTrust::Gapped));
}
