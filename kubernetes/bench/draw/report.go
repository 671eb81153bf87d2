package draw

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// Report writes an account of a bench into a directory, which is made: report.json, report.svg with the panels
// in so many columns, and report.txt if there is a table.
func Report(dir string, account any, table string, columns int, panels []Panel) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(account, "", " ")
	if err != nil {
		return err
	}
	var picture strings.Builder
	if err := SVG(&picture, columns, panels); err != nil {
		return err
	}
	files := map[string]string{"report.json": string(text) + "\n", "report.svg": picture.String()}
	if table != "" {
		files["report.txt"] = table
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
