use std::net::IpAddr;
use std::time::Duration;

use super::{Answered, DnsName, DnsSet, EMPTY_ANSWERS, MAX_ADDRESSES, next_pause};
use crate::logic::rng::Rng;

fn set() -> DnsSet {
    DnsSet::new(DnsName::parse("engines:30000").expect("a name"))
}

fn answer(set: &mut DnsSet, addresses: &[&str]) -> Answered {
    set.answered(addresses.iter().map(|text| text.parse::<IpAddr>().expect("an address")))
}

fn urls(set: &DnsSet) -> Vec<String> {
    set.endpoints().map(|endpoint| endpoint.url.to_string()).collect()
}

#[test]
fn a_name_is_a_host_and_a_port() {
    let name = DnsName::parse("Engines.Default.svc:30000").expect("a name");
    assert_eq!((name.host(), name.port()), ("engines.default.svc", 30_000));
    for text in
        ["engines", "engines:", "engines:0", "engines:70000", ":1", "http://engines:1", "a b:1", "[::1]:1", "::1:1"]
    {
        assert_eq!(DnsName::parse(text), None, "{text}");
    }
}

#[test]
fn every_address_is_a_worker_and_the_order_of_an_answer_means_nothing() {
    let mut set = set();
    assert_eq!(answer(&mut set, &["10.0.0.2", "10.0.0.1", "10.0.0.2"]), Answered::Changed);
    assert_eq!(urls(&set), ["http://10.0.0.1:30000", "http://10.0.0.2:30000"]);
    assert_eq!(answer(&mut set, &["10.0.0.1", "::ffff:10.0.0.2"]), Answered::Same);
    assert_eq!(answer(&mut set, &["10.0.0.3"]), Answered::Changed);
    assert_eq!(urls(&set), ["http://10.0.0.3:30000"]);
}

#[test]
fn one_family_counts_and_stays_while_it_is_answered() {
    let mut both = set();
    assert_eq!(answer(&mut both, &["fd00::1", "10.0.0.1"]), Answered::Changed);
    assert_eq!(urls(&both), ["http://10.0.0.1:30000"]);
    for _ in 1..EMPTY_ANSWERS {
        assert_eq!(answer(&mut both, &["fd00::1"]), Answered::Empty, "half an answer moves nobody");
    }
    assert_eq!(answer(&mut both, &["fd00::1"]), Answered::Changed);
    assert_eq!(urls(&both), ["http://[fd00::1]:30000"]);
    assert_eq!(answer(&mut both, &["fd00::1", "10.0.0.1"]), Answered::Same, "nor does the other half when it returns");
}

#[test]
fn an_answer_without_addresses_counts_only_the_third_time_in_a_row() {
    let mut set = set();
    answer(&mut set, &["10.0.0.1"]);
    for _ in 0..3 {
        assert_eq!(answer(&mut set, &[]), Answered::Empty);
        assert_eq!(answer(&mut set, &[]), Answered::Empty);
        assert_eq!(answer(&mut set, &["10.0.0.1"]), Answered::Same, "the count begins anew");
    }
    assert_eq!([answer(&mut set, &[]), answer(&mut set, &[])], [Answered::Empty; 2]);
    assert_eq!(answer(&mut set, &[]), Answered::Changed);
    assert_eq!(urls(&set), [""; 0]);
    assert_eq!(answer(&mut set, &[]), Answered::Empty);
    assert_eq!(answer(&mut set, &["fd00::1"]), Answered::Changed, "the family is chosen anew");
}

/// Seen in volcano-sh/kthena#1725.
#[test]
fn a_name_that_stands_for_a_metadata_address_leads_nowhere() {
    let mut set = set();
    assert_eq!(answer(&mut set, &["169.254.169.254", "10.0.0.1", "fe80::1"]), Answered::Changed);
    assert_eq!(urls(&set), ["http://10.0.0.1:30000"]);
    assert_eq!(answer(&mut set, &["169.254.169.254"]), Answered::Empty);
}

#[test]
fn addresses_have_a_limit_and_the_same_ones_stay() {
    let mut set = set();
    let all = |first: u32| {
        (first..first + 2 * MAX_ADDRESSES as u32).map(|number| IpAddr::from((0x0a00_0000 + number).to_be_bytes()))
    };
    assert_eq!(set.answered(all(0)), Answered::Changed);
    assert_eq!(set.endpoints().count(), MAX_ADDRESSES);
    assert_eq!(set.answered(all(0).collect::<Vec<_>>().into_iter().rev()), Answered::Same);
}

#[test]
fn pauses_lie_within_a_tenth_of_the_interval() {
    let mut rng = Rng::from_seed(7);
    let interval = Duration::from_secs(30);
    let pauses: Vec<Duration> = (0..1_000).map(|_| next_pause(interval, &mut rng)).collect();
    assert!(pauses.iter().all(|pause| (27_000..=33_000).contains(&pause.as_millis())));
    assert!(
        pauses.iter().any(|pause| pause.as_millis() < 27_500) && pauses.iter().any(|pause| pause.as_millis() > 32_500)
    );
}
