package v1alpha1

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const valid = `{"apiVersion":"cpu.takt.dev/v1alpha1","kind":"Reservation","runtime":"3ms","period":"10ms"}`

func decodeValid(t *testing.T, edit func(map[string]any)) ([]byte, *Parameters, error) {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(valid), &fields); err != nil {
		t.Fatal(err)
	}
	edit(fields)
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Decode(data)
	return data, p, err
}

func TestParametersAreReadAsWritten(t *testing.T) {
	_, p, err := decodeValid(t, func(f map[string]any) {
		f["deadline"] = "5ms"
		f["policy"] = "deadline"
		f["threads"] = map[string]any{"select": "name", "name": "control-*"}
		f["overrun"] = "reclaim"
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(DefaultLimits, 2); err != nil {
		t.Fatal(err)
	}
	if p.Runtime != 3_000_000 || p.Period != 10_000_000 || *p.Deadline != 5_000_000 {
		t.Errorf("times are %s, %s, %s", p.Runtime, p.Period, p.Deadline)
	}
	if p.Threads.Name != "control-*" || p.OverrunRule() != OverrunReclaim || p.Policy != PolicyDeadline {
		t.Errorf("read %+v", p)
	}
	if got := p.PartsPerMillion(); got != 600_000 {
		t.Errorf("density of 3ms in 5ms is %d ppm", got)
	}
}

func TestHostileParametersAreRefusedWithTheValueAndARemedy(t *testing.T) {
	set := func(name string, value any) func(map[string]any) {
		return func(f map[string]any) { f[name] = value }
	}
	drop := func(name string) func(map[string]any) {
		return func(f map[string]any) { delete(f, name) }
	}
	threads := func(fields ...any) func(map[string]any) {
		return set("threads", func() map[string]any {
			m := map[string]any{}
			for i := 0; i < len(fields); i += 2 {
				m[fields[i].(string)] = fields[i+1]
			}
			return m
		}())
	}
	for name, tc := range map[string]struct {
		edit func(map[string]any)
		want []string
	}{
		"unknown field":       {set("budget", "3ms"), []string{`"budget"`, "runtime"}},
		"unknown thread rule": {threads("which", "all"), []string{`"threads.which"`}},
		"other case":          {set("Runtime", "3ms"), []string{`"Runtime"`}},
		"no apiVersion":       {drop("apiVersion"), []string{`""`, APIVersion}},
		"other version":       {set("apiVersion", "cpu.takt.dev/v2"), []string{"v2", APIVersion}},
		"other kind":          {set("kind", "Pod"), []string{`"Pod"`, Kind}},
		"no runtime":          {drop("runtime"), []string{"runtime is missing", "3ms"}},
		"no period":           {drop("period"), []string{"period is missing", "10ms"}},
		"zero runtime":        {set("runtime", "0s"), []string{"runtime", "zero"}},
		"bare number":         {set("runtime", 3000000), []string{"3000000", `"3ms"`}},
		"no unit":             {set("runtime", "3"), []string{`"3"`, "ms"}},
		"negative":            {set("runtime", "-3ms"), []string{"-3ms"}},
		"sub-nanosecond":      {set("runtime", "3.1234567ms"), []string{"3.1234567ms", "6 digits"}},
		"huge":                {set("period", "99999999999999999999s"), []string{"99999999999999999999s"}},
		"not a number":        {set("period", "NaNms"), []string{"NaNms"}},
		"runtime > period":    {set("runtime", "11ms"), []string{"11ms", "period 10ms"}},
		"runtime > deadline":  {set("deadline", "2ms"), []string{"3ms", "deadline 2ms"}},
		"deadline > period":   {set("deadline", "11ms"), []string{"11ms", "10ms"}},
		"zero deadline":       {set("deadline", "0ms"), []string{"deadline", "leave it out"}},
		"tiny runtime":        {set("runtime", "1023ns"), []string{"1.023us", "1.024us"}},
		"period too short":    {func(f map[string]any) { f["runtime"] = "50us"; f["period"] = "99us" }, []string{"99us", "100us", "sched_deadline_period_min_us"}},
		"period too long":     {set("period", "4.195s"), []string{"4.195s", "4.194304s", "sched_deadline_period_max_us"}},
		"unknown policy":      {set("policy", "batch"), []string{"batch", "fifo"}},
		"unknown overrun":     {set("overrun", "kill"), []string{"kill", "throttle"}},
		"unknown selection":   {threads("select", "all"), []string{`"all"`, "first-m"}},
		"first of two":        {threads("select", "first"), []string{"2 cores", "first-m"}},
		"a least above it":    {set("minRuntime", "3.1ms"), []string{"minRuntime 3.1ms", "runtime 3ms"}},
		"a most below it":     {set("maxRuntime", "2.9ms"), []string{"maxRuntime 2.9ms", "runtime 3ms"}},
		"too little at least": {set("minRuntime", "1023ns"), []string{"minRuntime 1.023us", "1.024us"}},
		"most > period":       {set("maxRuntime", "11ms"), []string{"maxRuntime 11ms", "period 10ms"}},
		"a startup for good":  {set("startup", "601s"), []string{"startup 601s", "600s"}},
		"a startup that asks": {func(f map[string]any) { f["startup"] = "1s"; f["threads"] = map[string]any{"select": "ask"} }, []string{"startup 1s", "ask"}},
		"name without a name": {threads("select", "name"), []string{"threads.name", "control-*"}},
		"name without select": {threads("name", "x"), []string{`"x"`, "select: name"}},
		"broken pattern":      {threads("select", "name", "name", "[a"), []string{"[a", "bracket"}},
		"pattern with slash":  {threads("select", "name", "name", "a/b"), []string{"a/b", "slash"}},
		"long pattern":        {threads("select", "name", "name", strings.Repeat("a", 65)), []string{"65 bytes", "64"}},
	} {
		t.Run(name, func(t *testing.T) {
			data, p, err := decodeValid(t, tc.edit)
			if err == nil {
				err = p.Validate(DefaultLimits, 2)
			}
			if err == nil {
				t.Fatalf("%s was accepted", data)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("message %q does not name %q", err, want)
				}
			}
		})
	}
}

func TestWhatIsNotOneObjectIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "null x", "[]", "3", `"3ms"`, valid + valid, valid + "x", valid[:len(valid)-1],
		strings.Replace(valid, `"kind"`, `"runtime":"1ms","kind"`, 1),
		"{" + strings.Repeat(" ", MaxParameters) + "}",
	} {
		if p, err := Decode([]byte(text)); err == nil {
			t.Errorf("%.60q was read as %+v", text, p)
		}
	}
	if p, err := Decode([]byte("null")); err == nil && p.Validate(DefaultLimits, 1) == nil {
		t.Error("null is a reservation")
	}
}

func TestAClaimThatRequestsTooLittleCapacityIsRefused(t *testing.T) {
	p, err := Decode([]byte(valid))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.FitsCapacity(300_000); err != nil {
		t.Error(err)
	}
	err = p.FitsCapacity(299_999)
	if err == nil || !strings.Contains(err.Error(), "299999") || !strings.Contains(err.Error(), "bandwidth to 300000") {
		t.Errorf("message is %v", err)
	}
}

func TestPartsPerMillionAreTheLeastThatCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period := rapid.Uint64Range(100_000, 4_194_304_000).Draw(t, "period")
		runtime := rapid.Uint64Range(1024, period).Draw(t, "runtime")
		got := big.NewInt(ppm(runtime, period))
		covers := func(bandwidth *big.Int) bool {
			left := new(big.Int).Mul(bandwidth, new(big.Int).SetUint64(period))
			return left.Cmp(new(big.Int).Mul(big.NewInt(WholeCore), new(big.Int).SetUint64(runtime))) >= 0
		}
		if !covers(got) {
			t.Fatalf("%d ppm of %d is less than %d", got, period, runtime)
		}
		if less := new(big.Int).Sub(got, big.NewInt(1)); covers(less) {
			t.Fatalf("%d ppm of %d would have covered %d", less, period, runtime)
		}
	})
}

func TestThePapersTruncatedReservationIsNotNothing(t *testing.T) {
	if got := ppm(2_000, 3_000_000_000); got != 1 {
		t.Errorf("2us in 3s is %d ppm", got)
	}
}

func TestDurationsSurviveWritingAndMeanWhatGoAndCELMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Duration(rapid.Int64Min(0).Draw(t, "nanoseconds"))
		text := want.String()
		got, err := ParseDuration(text)
		if err != nil || got != want {
			t.Fatalf("%d is written %q and read as %d, %v", want, text, got, err)
		}
		theirs, err := time.ParseDuration(text)
		if err != nil || theirs != time.Duration(want) {
			t.Fatalf("%q is %d here and %d, %v in Go", text, want, theirs, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(valid))
	f.Add([]byte(`{"apiVersion":"cpu.takt.dev/v1alpha1","kind":"Reservation","runtime":"1.024us","period":"4.194304s",` +
		`"deadline":"100us","policy":"fifo","threads":{"select":"name","name":"a[b-d]*"},"overrun":"signal"}`))
	f.Add([]byte(`{"runtime":"1e9s"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Decode(data)
		if err != nil {
			return
		}
		if err := p.Validate(DefaultLimits, 2); err != nil {
			return
		}
		if need := p.PartsPerMillion(); need < 1 || need > WholeCore {
			t.Fatalf("%s needs %d ppm", data, need)
		}
		if p.FitsCapacity(p.PartsPerMillion()) != nil || p.FitsCapacity(p.PartsPerMillion()-1) == nil {
			t.Fatalf("%s does not fit exactly what it needs", data)
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Decode(again)
		if err != nil {
			t.Fatalf("%s was accepted and written as %s: %v", data, again, err)
		}
		if q.PartsPerMillion() != p.PartsPerMillion() || q.Runtime != p.Runtime || q.Threads != p.Threads {
			t.Fatalf("%s became %s", data, again)
		}
	})
}
