package node

import (
	"strings"
	"testing"
)

func TestAnAnnotationThatNobodyReadsIsRefusedByTheOneThatIsMeant(t *testing.T) {
	for key, meant := range map[string]string{
		"takt.dev/prelaod": "write takt.dev/preload if", "takt.dev/prelaod.main": "write takt.dev/preload if", "takt.dev/timesensitive": "write takt.dev/time-sensitive if",
		"takt.dev/Class": "write takt.dev/class if", "takt.dev/class.main": "write takt.dev/class if", "takt.dev/preload.": "write takt.dev/preload if", "takt.dev/others": "write one of takt.dev/time-sensitive, ",
		"takt.dev/preload": "", "takt.dev/preload.main": "", "takt.dev/library.main": "", "takt.dev/time-sensitive": "", "takt.dev/other-traffic": "",
		"cpu.takt.dev/any": "", "network.takt.dev/any": "", "example.com/takt.dev": "",
	} {
		err := checkAnnotations(map[string]string{key: "true", "takt.dev/interface": "eth0"})
		if meant == "" && err != nil || meant != "" && (err == nil || !strings.Contains(err.Error(), `"`+key+`"`) || !strings.Contains(err.Error(), meant)) {
			t.Errorf("%s: %v", key, err)
		}
	}
}
