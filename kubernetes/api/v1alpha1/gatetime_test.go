package v1alpha1

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// gate is valid parameters with other fields: "" leaves one out.
func gate(t *testing.T, changes ...string) string {
	t.Helper()
	fields := map[string]any{
		"apiVersion": "network.takt.dev/v1alpha1", "kind": "GateTime", "class": 5, "period": "1ms", "bytes": 1514, "destination": "10.244.1.9:4000",
	}
	for at := 0; at < len(changes); at += 2 {
		if changes[at+1] == "" {
			delete(fields, changes[at])
			continue
		}
		fields[changes[at]] = json.RawMessage(changes[at+1])
	}
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMistakesInGateTimeNameTheFieldAndTheRemedy(t *testing.T) {
	for name, tc := range map[string]struct {
		changes []string
		want    string
	}{
		"valid":                     {nil, ""},
		"of a channel":              {[]string{"destination", "", "channel", "0"}, ""},
		"everything":                {[]string{"bytes", "3000", "frame", "1500", "offset", `"100us"`, "window", `"50us"`, "destination", `"[fd00::9]:1"`}, ""},
		"another version":           {[]string{"apiVersion", `"network.takt.dev/v2"`}, `this node reads "network.takt.dev/v1alpha1"`},
		"another kind":              {[]string{"kind", `"Reservation"`}, `write "GateTime"`},
		"an unknown field":          {[]string{"rate", "7"}, "the fields are apiVersion, kind, class"},
		"a field by another case":   {[]string{"Class", "7"}, "the fields are"},
		"no class":                  {[]string{"class", ""}, "class is missing: write"},
		"class 8":                   {[]string{"class", "8"}, "class 8 is no traffic class: write 0 to 7"},
		"class -1":                  {[]string{"class", "-1"}, "write 0 to 7"},
		"a class as a text":         {[]string{"class", `"5"`}, "cannot read parameters"},
		"no period":                 {[]string{"period", ""}, `period is missing or zero: say how often frames launch, as in "1ms"`},
		"too short a period":        {[]string{"period", `"999ns"`}, "period 999ns is not from 1us to 60s"},
		"too long a period":         {[]string{"period", `"60.000000001s"`}, "is not from 1us to 60s"},
		"a bare period":             {[]string{"period", "5"}, "is not a string with a unit"},
		"no bytes":                  {[]string{"bytes", ""}, "bytes is 0 or missing: write the octets"},
		"negative bytes":            {[]string{"bytes", "-1"}, "bytes is -1"},
		"a frame above all bytes":   {[]string{"frame", "1515"}, "frame 1515 is not from 1 to bytes, 1514"},
		"a negative frame":          {[]string{"frame", "-1"}, "frame -1 is not from 1"},
		"too long a frame":          {[]string{"bytes", "16385"}, "a frame of 16385 octets is above 16384: write in frame"},
		"too many frames":           {[]string{"bytes", "102401", "frame", "100"}, "are 1025 frames of 100 octets, above 1024"},
		"an offset beyond":          {[]string{"offset", `"1ms"`}, "offset 1ms is not within a period of 1ms"},
		"a window as long":          {[]string{"window", `"1ms"`}, "window 1ms is not shorter than a period"},
		"nobody's frames":           {[]string{"destination", ""}, "destination and channel: write one of both"},
		"two flows":                 {[]string{"channel", "7"}, "destination and channel: write one of both"},
		"a name as a destination":   {[]string{"destination", `"listener:4000"`}, `destination "listener:4000" is not an IP address with a port: write it as`},
		"a destination without":     {[]string{"destination", `"10.244.1.9"`}, "is not an IP address with a port"},
		"port 0":                    {[]string{"destination", `"10.244.1.9:0"`}, "is not an IP address with a port"},
		"to anybody":                {[]string{"destination", `"0.0.0.0:1"`}, `destination "0.0.0.0:1" is nobody's address`},
		"to anybody by IPv6":        {[]string{"destination", `"[::]:1"`}, "write the receiver's"},
		"to anybody as IPv6":        {[]string{"destination", `"[::ffff:0.0.0.0]:1"`}, "write the receiver's"},
		"to many":                   {[]string{"destination", `"239.1.1.1:1"`}, ""},
		"a destination with a zone": {[]string{"destination", `"[fe80::1%eth0]:4000"`}, "is not an IP address with a port"},
	} {
		g, err := DecodeGateTime([]byte(gate(t, tc.changes...)))
		if err == nil {
			err = g.Validate()
		}
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := DecodeGateTime([]byte(strings.Repeat(" ", MaxParameters+1))); err == nil {
		t.Error("more than the API server stores")
	}
}

func TestAStreamTakesWhatItsFramesAreOnTheWire(t *testing.T) {
	for name, tc := range map[string]struct {
		changes []string
		frames  int64
		bits    int64
	}{
		// 1514 octets, and 28 for preamble, tag, FCS and gap, a thousand times a second.
		"a full frame":  {nil, 1, 12_336_000},
		"the shortest":  {[]string{"bytes", "1"}, 1, 88 * 8 * 1000},
		"more of them":  {[]string{"bytes", "3000", "frame", "1000"}, 3, 3 * 1028 * 8 * 1000},
		"one in part":   {[]string{"bytes", "1001", "frame", "1000"}, 2, 2 * 1028 * 8 * 1000},
		"every 3 s":     {[]string{"period", `"3s"`, "bytes", "60"}, 1, 235},
		"all there are": {[]string{"period", `"1us"`, "bytes", "16777216", "frame", "16384"}, 1024, 1024 * 16412 * 8 * 1_000_000},
	} {
		g, err := DecodeGateTime([]byte(gate(t, tc.changes...)))
		if err == nil {
			err = g.Validate()
		}
		if err != nil {
			t.Fatal(name, err)
		}
		if g.Frames() != tc.frames || g.BitsPerSecond() != tc.bits {
			t.Errorf("%s: %d frames, %d bits per second, and not %d, %d", name, g.Frames(), g.BitsPerSecond(), tc.frames, tc.bits)
		}
		if g.FitsCapacity(tc.bits, tc.bits) != nil {
			t.Errorf("%s does not fit what it takes", name)
		}
		if err := g.FitsCapacity(tc.bits-1, tc.bits); err == nil || !strings.Contains(err.Error(), `request capacity class5: "`) {
			t.Errorf("%s fits less: %v", name, err)
		}
	}
}

func TestBitsPerSecondAreTheLeastThatCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames, octets := rapid.Int64Range(1, MostFrames).Draw(t, "frames"), rapid.Int64Range(60, LongestFrame).Draw(t, "octets")
		period := rapid.Uint64Range(uint64(MinGatePeriod), uint64(MaxGatePeriod)).Draw(t, "period")
		need := new(big.Int).Mul(big.NewInt(frames*(octets+28)*8), big.NewInt(1_000_000_000))
		covers := func(bits int64) bool {
			return new(big.Int).Mul(big.NewInt(bits), new(big.Int).SetUint64(period)).Cmp(need) >= 0
		}
		if got := StreamBits(frames, octets, period); !covers(got) || covers(got-1) {
			t.Fatalf("%d frames of %d octets every %d ns are %d bits per second", frames, octets, period, got)
		}
	})
}

func FuzzDecodeGateTime(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"network.takt.dev/v1alpha1","kind":"GateTime","class":5,"period":"1ms","bytes":1514,"destination":"10.244.1.9:4000"}`))
	f.Add([]byte(`{"apiVersion":"network.takt.dev/v1alpha1","kind":"GateTime","class":0,"period":"1us","bytes":16777216,"frame":16384,"channel":1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := DecodeGateTime(data)
		if err != nil || g.Validate() != nil {
			return
		}
		if need := g.BitsPerSecond(); need < 1 || g.FitsCapacity(need, need) != nil || g.FitsCapacity(need-1, need) == nil || g.MostBitsPerSecond() < need {
			t.Fatalf("%s needs %d", data, need)
		}
	})
}
