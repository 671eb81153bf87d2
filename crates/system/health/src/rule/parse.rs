//! Reads conditions: comparisons joined by `and`, `or`, `not` and parentheses.

use super::{Expression, Kpi, Operator};
use crate::level::Level;

/// The longest expression, in bytes.
const MAX_LENGTH: usize = 4096;
/// How deep parentheses and `not` may go.
const MAX_DEPTH: usize = 32;

/// Why a text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoExpression {
    /// It is too long.
    #[error("{0} bytes; a condition has at most {MAX_LENGTH}")]
    TooLong(usize),
    /// It is nested too deep.
    #[error("parentheses and `not` go deeper than {MAX_DEPTH}")]
    TooDeep,
    /// A word is wrong.
    #[error("at {at}: {found} where {wanted} is due")]
    Unexpected {
        /// The character, from 1.
        at: usize,
        /// What is there.
        found: String,
        /// What would be right.
        wanted: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
    end: usize,
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        } else if "<>=!".contains(first) {
            rest.find(|c| !"<>=!".contains(c)).unwrap_or(rest.len())
        } else if "()".contains(first) {
            1
        } else {
            rest.find(|c: char| c.is_whitespace() || "<>=!()".contains(c))
                .unwrap_or(rest.len())
        };
        tokens.push(Token {
            text: &rest[..length],
            at,
        });
        at += length;
    }
    tokens
}

impl std::str::FromStr for Expression {
    type Err = NoExpression;

    fn from_str(text: &str) -> Result<Self, NoExpression> {
        if text.len() > MAX_LENGTH {
            return Err(NoExpression::TooLong(text.len()));
        }
        let mut parser = Parser {
            tokens: tokens(text),
            next: 0,
            end: text.len(),
        };
        let expression = parser.any(0)?;
        match parser.peek() {
            None => Ok(expression),
            Some(_) => Err(parser.wrong("and, or, or the end")),
        }
    }
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).map(|token| token.text)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.next += usize::from(found);
        found
    }

    fn wrong(&self, wanted: impl Into<String>) -> NoExpression {
        let token = self.tokens.get(self.next);
        NoExpression::Unexpected {
            at: token.map_or(self.end, |token| token.at) + 1,
            found: token.map_or("the end".into(), |token| format!("{:?}", token.text)),
            wanted: wanted.into(),
        }
    }

    fn any(&mut self, depth: usize) -> Result<Expression, NoExpression> {
        let mut parts = vec![self.all(depth)?];
        while self.take("or") {
            parts.push(self.all(depth)?);
        }
        Ok(one_or(parts, Expression::Any))
    }

    fn all(&mut self, depth: usize) -> Result<Expression, NoExpression> {
        let mut parts = vec![self.single(depth)?];
        while self.take("and") {
            parts.push(self.single(depth)?);
        }
        Ok(one_or(parts, Expression::All))
    }

    fn single(&mut self, depth: usize) -> Result<Expression, NoExpression> {
        if depth >= MAX_DEPTH {
            return Err(NoExpression::TooDeep);
        }
        if self.take("not") {
            return Ok(Expression::Not(Box::new(self.single(depth + 1)?)));
        }
        if self.take("(") {
            let inner = self.any(depth + 1)?;
            return match self.take(")") {
                true => Ok(inner),
                false => Err(self.wrong("and, or, or )")),
            };
        }
        let name = self.peek();
        let Some(kpi) = Kpi::ALL.into_iter().find(|kpi| Some(kpi.name()) == name) else {
            let names: Vec<&str> = Kpi::ALL.iter().map(|kpi| kpi.name()).collect();
            return Err(self.wrong(format!("a figure ({}), not or (", names.join(", "))));
        };
        self.next += 1;
        let operator = match self.peek() {
            Some("<") => Operator::Less,
            Some("<=") => Operator::AtMost,
            Some(">") => Operator::More,
            Some(">=") => Operator::AtLeast,
            Some("==") => Operator::Equal,
            Some("!=") => Operator::Unequal,
            _ => return Err(self.wrong("one of < <= > >= == !=")),
        };
        self.next += 1;
        let value = match (self.peek(), kpi.unit()) {
            (Some(text), Some(unit)) => unit.read(text),
            (Some(text), None) => Level::ALL
                .iter()
                .position(|level| level.name() == text)
                .map(|at| at as f64),
            (None, _) => None,
        };
        let Some(value) = value else {
            let wanted = kpi
                .unit()
                .map_or("green, yellow or red", |unit| unit.example());
            return Err(self.wrong(wanted));
        };
        self.next += 1;
        Ok(Expression::Compare(kpi, operator, value))
    }
}

fn one_or(mut parts: Vec<Expression>, join: fn(Vec<Expression>) -> Expression) -> Expression {
    match (parts.len(), parts.pop()) {
        (1, Some(one)) => one,
        (_, Some(last)) => {
            parts.push(last);
            join(parts)
        }
        (_, None) => join(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn and_binds_closer_than_or_and_not_closest() {
        let expression: Expression = "lost > 1 or not lost > 2 and delay >= 1.5ms"
            .parse()
            .expect("an expression");
        assert_eq!(
            expression.to_string(),
            "lost > 1 or (not (lost > 2) and delay >= 1.5ms)"
        );
    }

    #[test]
    fn a_wrong_word_is_told_with_its_place_and_what_is_due() {
        for (text, at, wanted) in [
            ("", 1, "a figure"),
            ("delay", 6, "one of <"),
            ("delay => 1ms", 7, "one of <"),
            ("delay > 1", 9, "a time"),
            ("delay > 1ms jitter > 1ms", 13, "and, or"),
            ("(delay > 1ms", 13, ")"),
            ("level > blue", 9, "yellow"),
            ("loss > 200%", 8, "share"),
            ("dealy > 1ms", 1, "delay"),
        ] {
            match text.parse::<Expression>() {
                Err(NoExpression::Unexpected {
                    at: told,
                    wanted: due,
                    ..
                }) => {
                    assert_eq!(told, at, "{text}");
                    assert!(due.contains(wanted), "{text}: {due}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        let deep = "(".repeat(40) + "lost > 1" + &")".repeat(40);
        assert_eq!(deep.parse::<Expression>(), Err(NoExpression::TooDeep));
        let long = "lost > 1 and ".repeat(1000);
        assert!(matches!(
            long.parse::<Expression>(),
            Err(NoExpression::TooLong(_))
        ));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}", words in proptest::collection::vec(
            prop_oneof!["delay|loss|level|lost", "<|>|==|>=", "1ms|3|red|5%", "and|or|not", "[()]"], 0..20)) {
            let _ = text.parse::<Expression>();
            let _ = words.join(" ").parse::<Expression>();
        }
    }
}
