//! The configuration file: of the gateway, and of the load generator that goes to it.

use crate::gateway::Options;
use crate::journal;
use crate::login::padded;
use crate::market::{Listing, Sizes};
use crate::ouch::HIGHEST;
use crate::rules::Rules;
use doorbell_service::config::{Error, File, Page};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;

/// What the file may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Content {
    device: String,
    #[serde(default = "default_port")]
    port: u16,
    password: Option<Spanned<String>>,
    processor: Option<usize>,
    idle_microseconds: Option<u32>,
    #[serde(default)]
    sessions: SessionsContent,
    #[serde(default)]
    limits: LimitsContent,
    #[serde(default)]
    symbol: Vec<SymbolContent>,
    symbols: Option<Spanned<SymbolsContent>>,
    journal: Option<journal::Options>,
    metrics: Option<Page>,
}

fn default_port() -> u16 {
    Options::default().port
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct SessionsContent {
    most: Option<Spanned<usize>>,
    window: Option<Spanned<usize>>,
    queue: Option<Spanned<u64>>,
    receives: Option<u32>,
    own_receives: Option<u32>,
    sends: Option<Spanned<u32>>,
    heartbeat_milliseconds: Option<u64>,
    patience_milliseconds: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct LimitsContent {
    orders: Option<Spanned<usize>>,
    prices: Option<Spanned<usize>>,
    size: Option<u32>,
    notional: Option<Spanned<f64>>,
    collar_percent: Option<Spanned<f64>>,
    open_orders: Option<u32>,
    duplicate_microseconds: Option<u64>,
    rate: Option<u32>,
    flood: Option<u32>,
    self_match: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SymbolContent {
    name: Spanned<String>,
    price: Spanned<f64>,
}

/// Many symbols with names that are counted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SymbolsContent {
    count: usize,
    price: f64,
}

/// A configuration that is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Of the gateway.
    pub gateway: Options,
    /// The processor of its thread.
    pub processor: Option<usize>,
    /// The checks before the book.
    pub rules: Rules,
    /// How large the market is.
    pub sizes: Sizes,
    /// What is traded.
    pub listings: Vec<Listing>,
    /// Where inputs are written.
    pub journal: Option<journal::Options>,
    /// Where the page of counters is.
    pub metrics: Option<SocketAddr>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with the file, where, and what to do.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::of(&File::read(path)?)
    }

    fn of(file: &File<Content>) -> Result<Self, Error> {
        let content = &file.value;
        let SessionsContent {
            most,
            window,
            queue,
            receives,
            own_receives,
            sends,
            heartbeat_milliseconds,
            patience_milliseconds,
        } = &content.sessions;
        let default = Options::default();
        let window =
            file.within(window.as_ref(), 4096, 16..=1 << 20, "a window has 16 to 1,048,576 messages")?;
        let queue = file.within(
            queue.as_ref(),
            default.queue.min(window as u64),
            1..=window as u64,
            "at least 1 message may wait, and no more than the window has",
        )?;
        let heartbeat = heartbeat_milliseconds.map_or(default.heartbeat, Duration::from_millis);
        let enough = 2 * heartbeat.as_millis() as u64..=u64::MAX;
        let patience = file.within(
            patience_milliseconds.as_ref(),
            default.patience.as_millis() as u64,
            enough,
            "clients send a heartbeat a second: allow at least two of them",
        )?;
        let password = match &content.password {
            None => default.password,
            Some(password) => padded(password.get_ref())
                .ok_or_else(|| file.error(password.span(), "a password has up to 10 bytes"))?,
        };
        let gateway = Options {
            device: content.device.clone(),
            port: content.port,
            password,
            receives: receives.unwrap_or(default.receives).max(64),
            own_receives: own_receives.unwrap_or(default.own_receives),
            sends: file.within(sends.as_ref(), default.sends, 32..=4096, "32 to 4,096 requests fit")?,
            queue,
            heartbeat,
            patience: Duration::from_millis(patience),
            idle: content.idle_microseconds.map_or(default.idle, |us| Duration::from_micros(us.into())),
        };
        let LimitsContent { orders, prices, .. } = &content.limits;
        let sizes = Sizes {
            sessions: file.within(most.as_ref(), 1024, 1..=65_536, "1 to 65,536 sessions fit")?,
            window,
            orders: file.within(orders.as_ref(), 1 << 18, 1..=1 << 26, "1 to 67,108,864 orders fit")?,
            levels: file.within(prices.as_ref(), 1024, 1..=1 << 20, "1 to 1,048,576 prices fit")?,
        };
        Ok(Self {
            gateway,
            processor: content.processor,
            rules: rules(file, &content.limits)?,
            sizes,
            listings: listings(file, content)?,
            journal: content.journal.clone(),
            metrics: content.metrics.as_ref().map(|metrics| metrics.listen),
        })
    }

    /// What a market depends on beside its inputs.
    pub fn fingerprint(&self) -> String {
        format!("{:?} {:?} {:?}", self.rules, self.sizes, self.listings)
    }
}

fn rules(file: &File<Content>, content: &LimitsContent) -> Result<Rules, Error> {
    let default = Rules::default();
    let notional = file.within(
        content.notional.as_ref(),
        default.notional as f64 / 10_000.0,
        0.0..=1e14,
        "dollars, at most 10^14",
    )?;
    let collar = file.within(
        content.collar_percent.as_ref(),
        f64::from(default.collar) / 100.0,
        0.0..=100.0,
        "0 to 100 per cent",
    )?;
    Ok(Rules {
        size: content.size.unwrap_or(default.size),
        notional: (notional * 10_000.0).round() as u64,
        collar: (collar * 100.0).round() as u32,
        open_orders: content.open_orders.unwrap_or(default.open_orders),
        duplicate: content.duplicate_microseconds.map_or(default.duplicate, |us| us * 1000),
        rate: content.rate.unwrap_or(default.rate),
        flood: content.flood.unwrap_or(default.flood),
        prevent_self_match: !content.self_match.unwrap_or(!default.prevent_self_match),
    })
}

fn listings(file: &File<Content>, content: &Content) -> Result<Vec<Listing>, Error> {
    let price = |dollars: f64, span: std::ops::Range<usize>| {
        let price = (dollars * 10_000.0).round();
        match price >= 1.0 && price <= HIGHEST as f64 {
            true => Ok(price as u32),
            false => Err(file.error(span, "a price is between 0.0001 and 199,999.99 dollars")),
        }
    };
    let mut listings = Vec::new();
    for symbol in &content.symbol {
        let name = padded(symbol.name.get_ref()).filter(|name| *name != [b' '; 8]);
        let name = name.ok_or_else(|| file.error(symbol.name.span(), "a symbol has 1 to 8 bytes"))?;
        listings.push(Listing { name, price: price(*symbol.price.get_ref(), symbol.price.span())? });
    }
    if let Some(symbols) = &content.symbols {
        let SymbolsContent { count, price: dollars } = symbols.get_ref();
        for n in 0..*count {
            let name = padded(&format!("S{n:03}")).filter(|_| *count <= 10_000);
            let name =
                name.ok_or_else(|| file.error(symbols.span(), "at most 10,000 symbols are counted"))?;
            listings.push(Listing { name, price: price(*dollars, symbols.span())? });
        }
    }
    let names: BTreeSet<_> = listings.iter().map(|listing| listing.name).collect();
    if listings.is_empty() || names.len() < listings.len() || listings.len() > usize::from(u16::MAX) {
        let text = "1 to 65,535 symbols, each once: add [[symbol]] with name and price, or [symbols] with count and price";
        return Err(file.error(0..0, text));
    }
    Ok(listings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let file = File::parse(Path::new("o.toml"), text.to_owned()).map_err(|error| error.to_string())?;
        Config::of(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn a_short_file_is_enough() {
        let config = parse("device = \"mlx5_0\"\n[[symbol]]\nname = \"ABC\"\nprice = 12.5").unwrap();
        assert_eq!(config.gateway, Options { device: "mlx5_0".into(), ..Options::default() });
        assert_eq!((config.rules, config.journal), (Rules::default(), None));
        assert_eq!(config.listings, [Listing { name: *b"ABC     ", price: 125_000 }]);
    }

    #[test]
    fn the_installed_example_is_valid() {
        let config = parse(include_str!("../dist/orders.toml")).unwrap();
        assert_eq!(config.listings.len(), 200);
        assert_eq!(config.rules, Rules::default());
    }

    #[test]
    fn errors_say_what_to_do() {
        let symbol = "[[symbol]]\nname = \"ABC\"\nprice = 1";
        for (text, expected) in [
            ("device = \"d\"".to_owned(), "o.toml:1:1: 1 to 65,535 symbols, each once: add [[symbol]]"),
            (format!("device = \"d\"\n{symbol}\n{symbol}"), "o.toml:1:1: 1 to 65,535 symbols"),
            ("device = \"d\"\n[[symbol]]\nname = \"\"\nprice = 1".to_owned(), "o.toml:3:8: a symbol has"),
            ("device = \"d\"\n[[symbol]]\nname = \"A\"\nprice = 2e5".to_owned(), "o.toml:4:9: a price is"),
            (format!("device = \"d\"\npassword = \"12345678901\"\n{symbol}"), "o.toml:2:12: a password has"),
            (format!("device = \"d\"\n{symbol}\n[sessions]\nwindow = 1"), "o.toml:6:10: a window has"),
            (format!("device = \"d\"\n{symbol}\n[sessions]\nqueue = 9999"), "o.toml:6:9: at least 1 message"),
            (format!("device = \"d\"\n{symbol}\n[limits]\ncollar-percent = 101"), "o.toml:6:18: 0 to 100"),
            (format!("device = \"d\"\n{symbol}\n[limits]\ncolor = 1"), "o.toml:6:1: unknown field `color`"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
