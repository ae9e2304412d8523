//! Whether a worker's engine finds cached what this router said it would: the engine's own count of cached prompt tokens in each
//! answer, against the blocks that were listed for it when the request was sent.
//!
//! Old answers fade, so that the ratio is that of about the last thirty. Less than expected is a sign that the list is wrong; more
//! is none, since what is listed may be incomplete.

/// Answers of which the newest weigh as much as all older ones together: the weight of an answer halves in so many.
const HALF_LIFE: f64 = 16.0;
/// Answers before a verdict.
const MIN_ANSWERS: u32 = 16;
/// Found part of the expected tokens below which a list counts as wrong.
const WRONG_BELOW: f64 = 0.5;

/// What an answer says about the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Nothing against it.
    Holds,
    /// The engine keeps missing what is listed. The record starts anew.
    Wrong,
}

/// The record of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TruthCheck {
    expected: f64,
    found: f64,
    num_answers: u32,
    /// Tokens that were listed, of all answers that were compared.
    pub expected_tokens: u64,
    /// Of these, tokens that the engine found cached.
    pub found_tokens: u64,
    /// Times the list proved wrong.
    pub num_wrong: u32,
}

impl TruthCheck {
    /// Compares an answer. An engine leaves the last token of a prompt to be computed, so that up to a block may be missing of a
    /// prompt that is cached whole.
    pub fn compare(&mut self, expected_tokens: u32, cached_tokens: u32, block_size: u32) -> Verdict {
        if expected_tokens == 0 {
            return Verdict::Holds;
        }
        let is_as_good = cached_tokens.saturating_add(block_size) >= expected_tokens;
        let found = if is_as_good { expected_tokens } else { cached_tokens };
        self.expected_tokens += u64::from(expected_tokens);
        self.found_tokens += u64::from(found);
        let fade = 0.5_f64.powf(1.0 / HALF_LIFE);
        self.expected = self.expected * fade + f64::from(expected_tokens);
        self.found = self.found * fade + f64::from(found);
        self.num_answers = self.num_answers.saturating_add(1);
        if self.num_answers < MIN_ANSWERS || self.found >= self.expected * WRONG_BELOW {
            return Verdict::Holds;
        }
        self.num_wrong = self.num_wrong.saturating_add(1);
        (self.expected, self.found, self.num_answers) = (0.0, 0.0, 0);
        Verdict::Wrong
    }

    /// Returns the found part of what was expected lately, 0 to 1; `None` where no answer could be compared.
    pub fn ratio(&self) -> Option<f64> {
        (self.expected > 0.0).then(|| self.found / self.expected)
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_ANSWERS, TruthCheck, Verdict};

    fn verdicts(answers: &[(u32, u32)]) -> (u32, TruthCheck) {
        let mut check = TruthCheck::default();
        let wrong = answers.iter().filter(|(expected, cached)| check.compare(*expected, *cached, 16) == Verdict::Wrong);
        (wrong.count() as u32, check)
    }

    #[test]
    fn a_list_that_keeps_promising_too_much_is_wrong() {
        type Row<'a> = (&'a str, &'a [(u32, u32)], u32);
        let rows: &[Row<'_>] = &[
            ("all found", &[(160, 160); 100], 0),
            ("more found than listed", &[(160, 1_000); 100], 0),
            ("the last block is always computed", &[(160, 144); 100], 0),
            ("half of it found", &[(160, 80); 100], 0),
            ("nothing listed is nothing promised", &[(0, 0); 100], 0),
            ("too few answers to tell", &[(160, 0); MIN_ANSWERS as usize - 1], 0),
            ("nothing found", &[(160, 0); MIN_ANSWERS as usize], 1),
            ("a second record of nothing found", &[(160, 0); 2 * MIN_ANSWERS as usize], 2),
        ];
        for (sentence, answers, expected) in rows {
            assert_eq!(verdicts(answers).0, *expected, "{sentence}");
        }
    }

    #[test]
    fn a_good_past_does_not_hide_a_bad_present() {
        let mut answers = vec![(160, 160); 10_000];
        answers.extend([(160, 0); 20]);
        assert_eq!(verdicts(&answers).0, 1);
    }

    #[test]
    fn the_ratio_is_unknown_until_an_answer_was_compared() {
        assert_eq!(TruthCheck::default().ratio(), None);
        assert_eq!(verdicts(&[(100, 50)]).1.ratio(), Some(0.5));
        assert_eq!((verdicts(&[(100, 50); 3]).1.expected_tokens, verdicts(&[(100, 50); 3]).1.found_tokens), (300, 150));
    }
}
