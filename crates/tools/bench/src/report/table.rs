//! Tables of figures, one row for each variant.

use super::page::{Looks, escape};

/// Figures of variants.
pub(super) struct Table<'a> {
    pub(super) corner: String,
    pub(super) headings: Vec<String>,
    pub(super) rows: Vec<Row<'a>>,
    /// The column to catch the eye.
    pub(super) strong: Option<usize>,
}

/// The figures of a variant, or, without any, the heading of the rows below.
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    pub(super) cells: Vec<String>,
}

impl Table<'_> {
    /// An empty table with `corner` above the names.
    pub(super) fn new(corner: String) -> Self {
        Self {
            corner,
            headings: Vec::new(),
            rows: Vec::new(),
            strong: None,
        }
    }

    /// The table in HTML; empty without figures.
    pub(super) fn render(&self, looks: &Looks<'_>) -> String {
        if self.rows.iter().all(|row| row.cells.is_empty()) {
            return String::new();
        }
        let mut html = format!(
            "<div class=\"wide\"><table>\n<thead><tr><th>{}</th>",
            escape(&self.corner)
        );
        for heading in &self.headings {
            html.push_str(&format!("<th>{}</th>", escape(heading)));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            if row.cells.is_empty() {
                let columns = self.headings.len() + 1;
                html.push_str(&format!(
                    "<tr class=\"group\"><th colspan=\"{columns}\">{}</th></tr>\n",
                    escape(row.name)
                ));
                continue;
            }
            html.push_str(&format!(
                "<tr><th scope=\"row\">{}</th>",
                looks.chip(row.name)
            ));
            for (index, cell) in row.cells.iter().enumerate() {
                let class = if self.strong == Some(index) {
                    " class=\"strong\""
                } else {
                    ""
                };
                html.push_str(&format!("<td{class}>{}</td>", escape(cell)));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody>\n</table></div>\n");
        html
    }
}
