//! Prints the public API of a crate from the JSON that rustdoc has written, one item a line.
//! Blanket and auto traits are left out.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let json = std::env::args().nth(1).ok_or("usage: api FILE.json")?;
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    for item in api.items() {
        println!("{item}");
    }
    Ok(())
}
