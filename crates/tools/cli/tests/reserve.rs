//! `takt reserve`: task sets in files, programs under measurement, manifests; no daemon.

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Ran, run, takt};
use takt_bench::reservations::Deadline;
use takt_reserve::Nanos;
use takt_testing::Directory;

const TASKS: &str = "\
tasks:
  - {name: camera, wcet: 7ms, period: 50ms}
  - {name: planner, wcet: 9ms, period: 75ms}
";

fn reserve(arguments: &[&str]) -> Ran {
    run(&[&["reserve"], arguments].concat())
}

/// `takt reserve` with a text on its standard input.
fn reserve_on(arguments: &[&str], text: &str) -> Ran {
    let mut child = takt(&[&["reserve"], arguments].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("takt");
    let mut input = child.stdin.take().expect("its input");
    // A command that refuses its arguments reads nothing.
    let _ = input.write_all(text.as_bytes());
    drop(input);
    child.wait_with_output().expect("its end").into()
}

#[test]
fn plan_finds_the_reservation_of_the_documentation_and_check_agrees() {
    let ran = reserve_on(&["plan", "-", "--period", "10ms", "--json"], TASKS);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let plan = ran.json();
    assert_eq!(
        plan["reservation"],
        json!({"runtime": 3_500_000, "period": 10_000_000, "cores": 1})
    );
    assert_eq!(plan["total_bandwidth"], 350_000);
    assert_eq!(plan["tasks"][1]["response"], 75_000_000);

    let given = ["check", "-", "--period", "10ms", "--runtime"];
    let ran = reserve_on(&[&given[..], &["3500us"]].concat(), TASKS);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    for part in ["planner", "75ms", "meets", "░", "●", "deadline 75ms"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let ran = reserve_on(&[&given[..], &["3499us"]].concat(), TASKS);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(
        ran.out.contains("`planner`") && ran.out.contains("MAY MISS"),
        "{ran:?}"
    );
    assert!(ran.err.contains("takt reserve plan"), "{ran:?}");
    let ran = reserve_on(&[&given[..], &["3499us", "--json"]].concat(), TASKS);
    assert_eq!(
        (ran.code, ran.json()["schedulable"].as_bool()),
        (Some(6), Some(false))
    );
}

#[test]
fn plan_tells_the_command_that_asks_kubernetes_for_it() {
    let ran = reserve_on(&["plan", "-", "--period", "10ms", "--ascii"], TASKS);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = ran.out.lines().last().expect("a line");
    let told = line.strip_prefix("Kubernetes: takt ").expect("a command");
    let words: Vec<&str> = told.split(' ').collect();
    let ran = run(&words);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("bandwidth: \"350000\""), "{ran:?}");
}

#[test]
fn a_plan_per_task_tells_the_claim_of_each_with_its_deadline() {
    let tasks = "tasks:\n  - {name: control, wcet: 2ms, period: 10ms, deadline: 8ms}\n  - {name: log, wcet: 1ms, period: 20ms}\n";
    let ran = reserve_on(&["plan", "-", "--per-task", "--deadlines"], tasks);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = ran.out.split("Kubernetes:\n").nth(1).expect("commands");
    let claims: Vec<Ran> = told
        .lines()
        .map(|line| line.trim().strip_prefix("takt ").expect("a command"))
        .map(|line| run(&[&line.split(' ').collect::<Vec<_>>()[..], &["--json"]].concat()))
        .collect();
    let devices = |ran: &Ran| ran.json()["spec"]["devices"].clone();
    let parameters = |ran: &Ran| devices(ran)["config"][0]["opaque"]["parameters"].clone();
    let bandwidth = |ran: &Ran| {
        devices(ran)["requests"][0]["exactly"]["capacity"]["requests"]["bandwidth"].clone()
    };
    // Q/D, not Q/P: what the admission policy and the node compute.
    assert_eq!(parameters(&claims[0])["deadline"], "8ms");
    assert_eq!(parameters(&claims[0])["period"], "10ms");
    assert_eq!(bandwidth(&claims[0]), "250125");
    assert_eq!(parameters(&claims[1]).get("deadline"), None);
    assert_eq!(bandwidth(&claims[1]), "50000");
    // All of them can be applied: no two have one name.
    let name = |ran: &Ran| ran.json()["metadata"]["name"].clone();
    assert_eq!(
        (name(&claims[0]), name(&claims[1])),
        (json!("control"), json!("log"))
    );
}

#[test]
fn csv_is_read_by_its_ending_and_mistakes_name_file_and_line() {
    let directory = Directory::new();
    let file = directory.text("tasks.csv");
    std::fs::write(
        &file,
        "name,C,T,D,priority\ncontrol,2ms,10ms,8ms,90\nlog,1ms,20ms,,10\n",
    )
    .expect("write");
    let ran = reserve(&["plan", &file, "--per-task", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let control = &ran.json()["tasks"][0];
    assert_eq!(
        control["reservation"],
        json!({"runtime": 2_000_000, "period": 8_000_000, "cores": 1})
    );
    assert_eq!(control.get("deadline"), None);
    let ran = reserve(&["plan", &file, "--per-task", "--deadlines", "--json"]);
    let control = &ran.json()["tasks"][0];
    assert_eq!(
        control["reservation"],
        json!({"runtime": 2_001_000, "period": 10_000_000, "cores": 1})
    );
    assert_eq!(control["deadline"], 8_000_000);
    assert_eq!(ran.json()["total_bandwidth"], 300_125);
    std::fs::write(&file, "name,C,T\ncontrol,2ms,10 minutes\n").expect("write");
    let ran = reserve(&["plan", &file]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(
        ran.err.contains("tasks.csv: line 2: T: ") && ran.err.contains("use ns, us, ms or s"),
        "{ran:?}"
    );
    let ran = reserve(&["check", "/none", "--runtime", "1ms", "--period", "2ms"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
}

#[test]
fn what_cannot_be_planned_is_told_with_what_could_be_done() {
    let heavy =
        "tasks:\n  - {name: a, wcet: 8ms, period: 10ms}\n  - {name: b, wcet: 8ms, period: 10ms}\n";
    let ran = reserve_on(&["plan", "-"], heavy);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(
        ran.err.contains("--per-task") && ran.err.contains("--max-cores"),
        "{ran:?}"
    );
    let ran = reserve_on(&["plan", "-", "--max-cores", "2"], heavy);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    let ran = reserve_on(&["plan", "-", "--per-task"], heavy);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("on 2 cores or more"), "{ran:?}");
    let ran = reserve_on(&["plan", "-", "--period", "0"], TASKS);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for wrong in [
        ["--core-bound", "0.9"],
        ["--shortest", "fast"],
        ["--from", "toml"],
    ] {
        let ran = reserve_on(&[&["plan", "-"], &wrong[..]].concat(), TASKS);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

#[test]
fn several_cores_come_with_the_condition_under_which_they_hold() {
    let light: String = (0..4)
        .map(|n| format!("  - {{name: t{n}, wcet: 5ms, period: 20ms}}\n"))
        .collect();
    let ran = reserve_on(
        &["plan", "-", "--max-cores", "2", "--json"],
        &format!("tasks:\n{light}"),
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["reservation"]["cores"], 2);
    assert!(ran.err.contains("no server sleeps"), "{ran:?}");
}

#[test]
fn the_picture_is_written_to_a_file_or_alone_to_standard_output() {
    let directory = Directory::new();
    let svg = directory.text("supply.svg");
    let given = ["check", "-", "--runtime", "4ms", "--period", "10ms"];
    let ran = reserve_on(&[&given[..], &["--svg", &svg]].concat(), TASKS);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("meets"));
    let picture = std::fs::read_to_string(&svg).expect("the picture");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    let alone = ["--svg", "-", "--task", "camera"];
    let ran = reserve_on(&[&given[..], &alone].concat(), TASKS);
    assert!(
        ran.out.starts_with("<svg ") && ran.out.contains("of camera"),
        "{ran:?}"
    );
    let ran = reserve_on(&[&given[..], &["--task", "radar"]].concat(), TASKS);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("there are: camera, planner"), "{ran:?}");
}

#[test]
fn the_experiment_writes_a_report_with_every_job_and_refuses_what_is_no_time() {
    let _alone = alone_with_the_kernel();
    let ran = run(&["bench", "reservations", "--seconds", "0"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("use 0.2 to 600"), "{ran:?}");
    let directory = Directory::new();
    let out = directory.text("report");
    let ran = run(&[
        "bench",
        "reservations",
        "--sets",
        "2",
        "--seconds",
        "0.3",
        "--hogs",
        "1",
        "--out",
        &out,
        "--json",
    ]);
    if ran.code == Some(1) && (ran.err.contains("CAP_SYS_NICE") || ran.err.contains("refuses")) {
        eprintln!("skipped: {}", ran.err);
        return;
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let account = ran.json();
    let sets = account["sets"].as_array().expect("sets");
    assert_eq!((sets.len(), ran.err.lines().count()), (2, 2), "{ran:?}");
    for set in sets {
        let tasks = set["tasks"].as_array().expect("tasks").iter();
        let jobs: u64 = tasks
            .map(|task| 300_000_000 / task["period_ns"].as_u64().expect("a number"))
            .sum();
        for way in ["reserved", "ordinary"] {
            let responses = set[way]["responses"].as_array().expect("responses");
            assert_eq!(responses.len() as u64, jobs, "{way}");
        }
    }
    let page = std::fs::read_to_string(directory.join("report/reservations.html"));
    let page = page.expect("the page");
    assert!(page.contains("<svg") && page.contains("SCHED_DEADLINE"));
}

/// The documents of a manifest.
fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).expect("YAML")
}

#[test]
fn the_manifest_is_the_one_that_the_driver_is_deployed_with() {
    let deployed = |name: &str| {
        let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/manifests");
        documents(&std::fs::read_to_string(manifests.join(name)).expect("a manifest"))
    };
    let ran = reserve(&[
        "claim",
        "--runtime",
        "3ms",
        "--period",
        "10ms",
        "--name",
        "controller",
        "--image",
        "registry.example.com/controller:1",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        documents(&ran.out),
        deployed("one-container.yaml"),
        "{}",
        ran.out
    );

    let ran = reserve(&[
        "claim",
        "--runtime",
        "2ms",
        "--period",
        "10ms",
        "--name",
        "two-in-ten",
        "--template",
    ]);
    let template = &deployed("claim-template.yaml")[0];
    assert_eq!(&documents(&ran.out)[0], template, "{}", ran.out);

    let ran = reserve(&[
        "claim",
        "--runtime",
        "1ms",
        "--period",
        "10ms",
        "--deadline",
        "5ms",
        "--cores",
        "2",
        "--threads",
        "name",
        "--thread-name",
        "control-*",
        "--json",
    ]);
    let devices = &ran.json()["spec"]["devices"];
    let robot = &deployed("several-containers.yaml")[0]["spec"]["devices"];
    assert_eq!(
        devices["requests"][0]["exactly"],
        robot["requests"][0]["exactly"]
    );
    assert_eq!(devices["config"][0]["opaque"], robot["config"][0]["opaque"]);
}

#[test]
fn bandwidth_is_rounded_up_and_texts_stay_texts() {
    let ran = reserve(&[
        "claim",
        "--runtime",
        "7ms",
        "--period",
        "33ms",
        "--name",
        "1e3",
        "--policy",
        "fifo",
        "--overrun",
        "reclaim",
        "--startup",
        "1500ms",
        "--threads",
        "name",
        "--thread-name",
        "a\"b\\: #*",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let claim = &documents(&ran.out)[0];
    let devices = &claim["spec"]["devices"];
    assert_eq!(
        devices["requests"][0]["exactly"]["capacity"]["requests"]["bandwidth"],
        "212122"
    );
    assert_eq!(claim["metadata"]["name"], "1e3");
    let parameters = &devices["config"][0]["opaque"]["parameters"];
    assert_eq!(
        *parameters,
        json!({
            "apiVersion": "cpu.takt.dev/v1alpha1", "kind": "Reservation", "runtime": "7ms", "period": "33ms",
            "policy": "fifo", "overrun": "reclaim", "startup": "1.5s", "threads": {"select": "name", "name": "a\"b\\: #*"},
        })
    );
}

#[test]
fn bandwidth_is_claimed_for_the_most_that_may_be_set() {
    let ran = reserve(&[
        "claim",
        "--runtime",
        "4ms",
        "--period",
        "20ms",
        "--min-runtime",
        "1ms",
        "--max-runtime",
        "8ms",
    ]);
    let devices = &documents(&ran.out)[0]["spec"]["devices"];
    assert_eq!(
        devices["requests"][0]["exactly"]["capacity"]["requests"]["bandwidth"],
        "400000"
    );
    let parameters = &devices["config"][0]["opaque"]["parameters"];
    assert_eq!(parameters["runtime"], "4ms");
    assert_eq!(parameters["minRuntime"], "1ms");
    assert_eq!(parameters["maxRuntime"], "8ms");
}

#[test]
fn claims_that_the_node_would_refuse_are_refused_before() {
    for (wrong, remedy) in [
        (
            &[
                "--runtime",
                "2ms",
                "--period",
                "9ms",
                "--min-runtime",
                "3ms",
            ][..],
            "from the kernel's least, 1.024us, to the runtime, 2ms",
        ),
        (
            &[
                "--runtime",
                "2ms",
                "--period",
                "9ms",
                "--max-runtime",
                "1ms",
            ],
            "--max-runtime 1ms is below the runtime 2ms",
        ),
        (
            &[
                "--runtime",
                "2ms",
                "--period",
                "9ms",
                "--max-runtime",
                "10ms",
            ],
            "--max-runtime 10ms exceeds the period 9ms",
        ),
        (
            &["--runtime", "11ms", "--period", "10ms"][..],
            "exceeds the period",
        ),
        (
            &["--runtime", "1us", "--period", "10ms"],
            "below the kernel's least",
        ),
        (&["--runtime", "2us", "--period", "50us"], "100us"),
        (&["--runtime", "2ms", "--period", "5s"], "4.194304s"),
        (
            &["--runtime", "2ms", "--period", "9ms", "--deadline", "10ms"],
            "at most that",
        ),
        (
            &["--runtime", "2ms", "--period", "9ms", "--deadline", "1ms"],
            "exceeds the deadline",
        ),
        (
            &["--runtime", "2ms", "--period", "9ms", "--name", "A b"],
            "a-z",
        ),
        (
            &["--runtime", "2ms", "--period", "9ms", "--class", ".."],
            "labels",
        ),
        (
            &["--runtime", "2ms", "--period", "9ms", "--threads", "name"],
            "--thread-name",
        ),
        (
            &[
                "--runtime",
                "2ms",
                "--period",
                "9ms",
                "--threads",
                "first",
                "--cores",
                "2",
            ],
            "first-m",
        ),
        (
            &["--runtime", "2ms", "--period", "9ms", "--startup", "601s"],
            "--threads ask",
        ),
        (
            &[
                "--runtime",
                "2ms",
                "--period",
                "9ms",
                "--startup",
                "5s",
                "--threads",
                "ask",
            ],
            "no effect",
        ),
    ] {
        let ran = reserve(&[&["claim"], wrong].concat());
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(remedy), "{remedy}: {ran:?}");
    }
    let ran = reserve(&[
        "claim",
        "--runtime",
        "2ms",
        "--period",
        "9ms",
        "--cores",
        "33",
    ]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

const PERIOD: Duration = Duration::from_millis(20);
const WORK: Duration = Duration::from_micros(300);

/// What is measured below, in a process of its own: a thread that works for 300 us every 20 ms.
#[test]
#[ignore = "a program, not a test"]
fn a_periodic_program() {
    let ticker = std::thread::Builder::new().name("ticker".into());
    let thread = ticker.spawn(|| {
        let start = Instant::now();
        for round in 0..50 {
            let until = start + PERIOD * round;
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            let begun = Instant::now();
            while begun.elapsed() < WORK {
                std::hint::spin_loop();
            }
        }
    });
    thread.expect("a thread").join().expect("its end");
}

#[test]
fn a_measured_program_is_a_task_set_that_can_be_planned() {
    let directory = Directory::new();
    let tasks = directory.text("tasks.yaml");
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path");
    let mut arguments = vec![
        "measure", "--only", "ticker", "--output", &tasks, "--margin", "50%", "--json", "--",
    ];
    arguments.extend([
        program,
        "--quiet",
        "--ignored",
        "--exact",
        "a_periodic_program",
    ]);
    let ran = reserve(&arguments);
    if ran.err.contains("cannot watch context switches") {
        eprintln!("skipped: {}", ran.err);
        return;
    }
    // Where the machine is so busy that a job gets its core only just before the next, it is no task.
    let no_task = ["exceeds its deadline", "exceed its deadline"];
    if ran.code == Some(1) && no_task.iter().any(|says| ran.err.contains(says)) {
        eprintln!("skipped: {}", ran.err);
        return;
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The program prints too, before.
    let json = ran
        .out
        .find("\n{\n")
        .map_or(ran.out.as_str(), |at| &ran.out[at..]);
    let measured: Value = serde_json::from_str(json).expect("JSON");
    let ticker = &measured["threads"][0];
    assert_eq!(ticker["name"], "ticker");
    // The first one is the thread's beginning; late ones may have found no time to sleep.
    let jobs = ticker["jobs"].as_u64().expect("a number");
    assert!((3..=49).contains(&jobs), "{ticker}");
    let longest = ticker["cpu_max"].as_u64().expect("a number");
    assert_eq!(ticker["task"]["wcet"], longest + longest.div_ceil(2));
    // Two jobs are no nearer than a late one and a punctual one.
    let number = |of: &Value| of.as_u64().unwrap_or(0);
    let apart = number(&ticker["min_interarrival"]) + number(&ticker["task"]["jitter"]);
    assert!(apart >= number(&ticker["task"]["period"]), "{ticker}");
    let text = std::fs::read_to_string(&tasks).expect("the task set");
    assert!(text.contains("{name: \"ticker\", wcet: "), "{text}");
    let ran = reserve(&[
        "check",
        &tasks,
        "--runtime",
        "10ms",
        "--period",
        "10ms",
        "--json",
    ]);
    assert!(matches!(ran.code, Some(0 | 6)), "{ran:?}");
    assert_eq!(ran.json()["tasks"][0]["wcet"], ticker["task"]["wcet"]);
}

#[test]
fn what_is_bounded_on_one_core_only_is_said_where_more_are_allowed() {
    let directory = Directory::new();
    let tasks = directory.text("tasks.yaml");
    let text =
        "tasks:\n  - {name: a, C: 1ms, T: 10ms, B: 1ms}\n  - {name: b, C: 1ms, T: 20ms, J: 2ms}\n";
    std::fs::write(&tasks, text).expect("written");
    let ran = reserve(&["plan", &tasks, "--max-cores", "2", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["reservation"]["cores"], 1);
    assert_eq!(ran.json()["tasks"][1]["jitter"], 2_000_000);
    assert!(ran.err.contains("one core alone was tried"), "{ran:?}");
    let ran = reserve(&[
        "check",
        &tasks,
        "--runtime",
        "9ms",
        "--period",
        "10ms",
        "--cores",
        "2",
    ]);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(ran.out.contains("bounded on one core only"), "{ran:?}");
    let ran = reserve(&["plan", &tasks, "--per-task"]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.err.contains("task `a` may be kept waiting by others"),
        "{ran:?}"
    );
}

#[test]
fn a_program_that_is_no_task_or_no_program_is_told() {
    let ran = reserve(&["measure", "--", "/no/such/program"]);
    if ran.err.contains("cannot watch context switches") {
        eprintln!("skipped: {}", ran.err);
        return;
    }
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("cannot run /no/such/program"), "{ran:?}");
    let ran = reserve(&["measure", "--", "sh", "-c", "exit 3"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("exit status: 3") && ran.err.contains("no thread of sh is a task"),
        "{ran:?}"
    );
    // It would run for an hour.
    let ran = reserve(&["measure", "--seconds", "1", "--", "sleep", "3600"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(reserve(&["measure"]).code, Some(2));
}

/// The program that is measured here, started already: by a shell, so that what was named is not what works.
fn start_the_periodic_program() -> std::process::Child {
    let program = std::env::current_exe().expect("this program");
    std::process::Command::new("sh")
        .args([
            "-c",
            "\"$0\" --quiet --ignored --exact a_periodic_program & wait",
        ])
        .arg(program)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("a shell")
}

#[test]
fn a_program_that_runs_already_is_measured_by_its_number_and_goes_on() {
    let mut running = start_the_periodic_program();
    let number = running.id().to_string();
    let ran = reserve(&[
        "measure",
        "--process",
        &number,
        "--only",
        "ticker",
        "--json",
    ]);
    // It was not ended.
    assert!(running.wait().expect("its end").success());
    if ran.err.contains("cannot watch context switches")
        || ran.code == Some(1) && ran.err.contains("exceeds its deadline")
    {
        eprintln!("skipped: {}", ran.err);
        return;
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let measured = ran.json();
    assert_eq!(measured["processes"].to_string(), format!("[{number}]"));
    let ticker = &measured["threads"][0];
    assert_eq!(ticker["name"], "ticker");
    let jobs = ticker["jobs"].as_u64().expect("a number");
    assert!((3..=49).contains(&jobs), "{ticker}");
    let longest = ticker["cpu_max"].as_u64().expect("a number");
    assert!(longest >= WORK.as_nanos() as u64 / 2, "{ticker}");
}

#[test]
fn a_process_that_cannot_be_followed_is_told_by_its_number() {
    let ran = reserve(&["measure", "--process", "4000000000"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("there is no process 4000000000"),
        "{ran:?}"
    );
    let (told, thread) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        told.send(rustix::thread::gettid().as_raw_nonzero().get())
            .expect("somebody asks");
        let _ = ended.recv();
    });
    let thread = thread.recv().expect("its number").to_string();
    let ran = reserve(&["measure", "--process", &thread]);
    drop(end);
    other.join().expect("its end");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let own = format!("{thread} is a thread of process {}", std::process::id());
    assert!(ran.err.contains(&own), "{ran:?}");
    for wrong in [&["--process", "0"][..], &["--process", "1", "--", "true"]] {
        let ran = reserve(&[&["measure"], wrong].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

/// What is tuned below: a thread that has `RUNTIME` of every 20 ms and works for 2 ms of CPU time in it, for as long as its
/// standard input is open.
#[test]
#[ignore = "a program, not a test"]
fn a_program_with_a_reservation() {
    let ticker = std::thread::Builder::new().name("tuned".into());
    let thread = ticker.spawn(|| {
        let runtime = std::env::var("RUNTIME").expect("a runtime").parse();
        let reserved = Deadline {
            runtime: Nanos::new(runtime.expect("nanoseconds")),
            deadline: Nanos::from_millis(20),
            period: Nanos::from_millis(20),
            flags: 1, // SCHED_FLAG_RESET_ON_FORK
        };
        if let Err(error) = reserved.give(0) {
            println!("refused {error}");
            return;
        }
        println!("ready");
        let clock = rustix::time::ClockId::ThreadCPUTime;
        let ran = || Duration::try_from(rustix::time::clock_gettime(clock)).expect("a time");
        let mut next = Instant::now();
        loop {
            let begun = ran();
            while ran() - begun < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            next += PERIOD;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    thread.expect("a thread");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Held by who has reservations, so that the kernel has room for all that a test asks for.
static KERNEL: Mutex<()> = Mutex::new(());

fn alone_with_the_kernel() -> MutexGuard<'static, ()> {
    KERNEL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts it, with variables of its environment; none where the kernel gives no reservation.
fn start_with_a_reservation(variables: &[(&str, &str)]) -> Option<std::process::Child> {
    let program = std::env::current_exe().expect("this program");
    let mut running = std::process::Command::new(program)
        .args([
            "--quiet",
            "--ignored",
            "--nocapture",
            "--exact",
            "a_program_with_a_reservation",
        ])
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let said = std::io::BufReader::new(running.stdout.take().expect("its output"));
    for line in std::io::BufRead::lines(said).map_while(Result::ok) {
        if line.contains("ready") {
            return Some(running);
        }
        if line.contains("refused") {
            eprintln!("skipped: {line}");
            break;
        }
    }
    let _ = running.kill();
    let _ = running.wait();
    None
}

/// Tunes the thread `tuned` of a program that begins with a runtime of `RUNTIME`; none where that cannot be done here.
fn tune(variables: &[(&str, &str)], arguments: &[&str]) -> Option<Ran> {
    let mut running = start_with_a_reservation(variables)?;
    let number = running.id().to_string();
    let ran = reserve(
        &[
            &[
                "tune",
                "--process",
                &number,
                "--only",
                "tuned",
                "--seconds",
                "2",
                "--json",
            ],
            arguments,
        ]
        .concat(),
    );
    drop(running.stdin.take());
    running.kill().expect("it runs");
    running.wait().expect("its end");
    if ran.err.contains("cannot watch context switches") {
        eprintln!("skipped: {}", ran.err);
        return None;
    }
    Some(ran)
}

#[test]
fn a_thread_is_told_what_it_needs_of_its_reservation_and_given_it_where_that_is_allowed() {
    let _alone = alone_with_the_kernel();
    let Some(ran) = tune(&[("RUNTIME", "8000000")], &[]) else {
        return;
    };
    let thread = &ran.json()["threads"][0];
    assert_eq!(thread["runtime"], 8_000_000, "{thread}");
    let needs = |thread: &Value| thread["needs"]["runtime"].as_u64().expect("a number");
    assert!(
        (2_400_000..=20_000_000).contains(&needs(thread)),
        "{thread}"
    );
    assert!(thread["set"].is_null(), "{thread}");

    // Half of what it does takes all of it: more is needed, and given in as far as is allowed.
    let starved = &[("RUNTIME", "1000000"), ("TAKT_TUNE_1", "500000 1800000")];
    let ran = tune(starved, &["--set"]).expect("the first could be tuned");
    let thread = &ran.json()["threads"][0];
    assert_eq!(thread["needs"]["kind"], "more", "{thread}");
    assert_eq!(needs(thread), 2_000_000, "{thread}");
    assert_eq!(thread["set"], 1_800_000, "{thread}");
}

#[test]
fn no_runtime_is_set_that_nobody_allows() {
    let _alone = alone_with_the_kernel();
    for (variables, arguments, why) in [
        (
            &[("TAKT_GRANT_1", "claim/cpu")][..],
            &["--set"][..],
            "add minRuntime and maxRuntime",
        ),
        (&[], &["--set"], "add --least and --most"),
        (&[], &["--set", "--most", "4ms"], "add --least and --most"),
        (
            &[("TAKT_TUNE_1", "4ms")],
            &["--set"],
            "TAKT_TUNE_1 is \"4ms\"",
        ),
    ] {
        let variables = [&[("RUNTIME", "8000000")], variables].concat();
        let Some(ran) = tune(&variables, arguments) else {
            return;
        };
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(why), "{ran:?}");
    }
    let swapped = reserve(&[
        "tune",
        "--process",
        "1",
        "--set",
        "--least",
        "2ms",
        "--most",
        "1ms",
    ]);
    assert!(
        swapped
            .err
            .contains("--least 2ms is above --most 1ms: swap them"),
        "{swapped:?}"
    );
    let mut plain = std::process::Command::new("sleep")
        .arg("100")
        .spawn()
        .expect("sleep");
    let number = plain.id().to_string();
    let none = reserve(&["tune", "--process", &number, "--seconds", "1"]);
    plain.kill().expect("it runs");
    plain.wait().expect("its end");
    assert!(
        none.err
            .contains("has a reservation (SCHED_DEADLINE): `chrt -a -p")
            || none.err.contains("cannot watch context switches"),
        "{none:?}"
    );
    // Of two claims, the one whose runtime the thread has.
    let both = &[
        ("RUNTIME", "8000000"),
        ("TAKT_TUNE_1", "7000000 9000000"),
        ("TAKT_TUNE_2", "100000 200000"),
    ];
    if let Some(ran) = tune(both, &["--set"]) {
        let thread = &ran.json()["threads"][0];
        // On a busy machine a job may have taken so long that it keeps what it has.
        let needed = thread["needs"]["runtime"].as_u64().expect("a number");
        let is_sure = ran.json()["lost_records"] == 0;
        match needed.clamp(7_000_000, 9_000_000) {
            7_200_000..=8_000_000 => assert!(thread["set"].is_null(), "{ran:?}"),
            set if set < 8_000_000 && !is_sure => assert!(thread["set"].is_null(), "{ran:?}"),
            set => assert_eq!(thread["set"], set, "{ran:?}"),
        }
    }
    let another = &[("RUNTIME", "8000000"), ("TAKT_TUNE_1", "100000 200000")];
    if let Some(ran) = tune(another, &["--set"]) {
        let thread = &ran.json()["threads"][0];
        assert!(thread["set"].is_null(), "{thread}");
        assert_eq!(
            thread["unset"],
            "no claim of its container allows another runtime"
        );
    }
}

const SIX: &str = "\
tasks:
  - {name: a, wcet: 360us, period: 1ms}
  - {name: b, wcet: 360us, period: 1ms}
  - {name: c, wcet: 270us, period: 1ms}
  - {name: d, wcet: 270us, period: 1ms}
  - {name: e, wcet: 270us, period: 1ms}
  - {name: f, wcet: 270us, period: 1ms}
";

#[test]
fn a_packing_says_which_task_is_on_which_core_and_whether_another_may_exist() {
    let packed = |more: &[&str]| {
        let plan = ["plan", "-", "--per-task", "--backend", "deadline-partition"];
        reserve_on(&[&plan[..], more].concat(), SIX)
    };
    let ran = packed(&["--node-cores", "2"]);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(
        ran.err.contains(
            "no room within 90.0% of a core for f; another packing may have it: try another --order"
        ),
        "{ran:?}"
    );
    let ran = packed(&["--node-cores", "2", "--order", "worst-fit", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        ran.json()["node"]["packing"],
        json!({
            "order": "worst-fit",
            "cores": [
                {"reservations": ["a", "c", "e"], "used": 900_000, "left": 0},
                {"reservations": ["b", "d", "f"], "used": 900_000, "left": 0},
            ],
            "left_out": [],
            "another_may_exist": false,
        })
    );
    let ran = packed(&["--node-cores", "1"]);
    assert!(ran.err.contains("no packing has it"), "{ran:?}");
    // The threads of one reservation are on different cores, as those of a claim.
    let two = [
        "plan",
        "-",
        "--max-cores",
        "2",
        "--node-cores",
        "1",
        "--backend",
        "deadline-partition",
    ];
    let ran = reserve_on(
        &two,
        "tasks:\n  - {name: a, wcet: 6ms, period: 10ms}\n  - {name: b, wcet: 6ms, period: 10ms}\n",
    );
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(
        ran.err
            .contains("no room within 90.0% of a core for all tasks"),
        "{ran:?}"
    );
}

const HEAVY: &str = "tasks:\n  - {name: heavy, wcet: 9ms, period: 10001us}\n";

#[test]
fn a_plan_regards_the_node_and_its_neighbours() {
    let per_task = ["plan", "-", "--per-task", "--core-bound", "95%"];
    // What two cores cannot keep, though no core's sum is above its bound.
    let beside = ["--node-cores", "2", "--neighbour", "4.5ms/10ms,4.5ms/10ms"];
    let ran = reserve_on(&[&per_task[..], &beside].concat(), HEAVY);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(
        ran.out
            .contains("3 reservations on 2 cores under global EDF: not guaranteed"),
        "{ran:?}"
    );
    assert!(ran.out.contains("11.25ms late"), "{ran:?}");
    let ran = reserve_on(&[&per_task[..], &beside, &["--json"]].concat(), HEAVY);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert_eq!(
        ran.json()["node"],
        json!({"guaranteed": false, "tardiness": 11_250_000})
    );
    // With an admission for each core there is no such question, only room.
    let partitioned = [&beside[..], &["--backend", "deadline-partition"]].concat();
    let ran = reserve_on(&[&per_task[..], &partitioned].concat(), HEAVY);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("set apart: guaranteed"), "{ran:?}");
    assert!(
        ran.out
            .contains("1     neighbour 4.5ms/10ms, neighbour 4.5ms/10ms  90.0%"),
        "{ran:?}"
    );
    let alone = reserve_on(&[&per_task[..], &["--node-cores", "1"]].concat(), HEAVY);
    assert_eq!(alone.code, Some(0), "{alone:?}");
    assert!(
        alone
            .out
            .contains("1 reservations on 1 cores under global EDF: guaranteed"),
        "{alone:?}"
    );
    // What is said without a node does not sound as if it held on any.
    let ran = reserve_on(&per_task, HEAVY);
    assert!(
        ran.out.contains("and nothing else, on one core or more"),
        "{ran:?}"
    );
}

#[test]
fn a_check_regards_the_node_and_its_neighbours() {
    let check = ["check", "-", "--runtime", "9ms", "--period", "10001us"];
    let ran = reserve_on(
        &[
            &check[..],
            &["--node-cores", "2", "--neighbour", "4.5ms/10ms"],
        ]
        .concat(),
        HEAVY,
    );
    assert!(
        ran.out
            .contains("2 reservations on 2 cores under global EDF: guaranteed"),
        "{ran:?}"
    );
    let full = [
        "--node-cores",
        "1",
        "--neighbour",
        "4.5ms/10ms/5ms",
        "--json",
    ];
    let ran = reserve_on(&[&check[..], &full].concat(), HEAVY);
    assert_eq!(
        (ran.code, ran.json()["node"].clone()),
        (Some(6), json!({"guaranteed": false}))
    );
    for wrong in [
        "4.5ms",
        "9ms/8ms",
        "1ms/10ms/20ms",
        "1ms/10ms/2ms/3ms",
        "x/y",
    ] {
        let ran = reserve_on(
            &[&check[..], &["--node-cores", "1", "--neighbour", wrong]].concat(),
            HEAVY,
        );
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(wrong), "{ran:?}");
    }
    let ran = reserve_on(&[&check[..], &["--neighbour", "1ms/2ms"]].concat(), HEAVY);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

/// What `kubectl get resourceslices,resourceclaims -A -o json` says of two nodes of two cores, of which one is full.
fn cluster() -> String {
    let node = |name: &str| {
        let core = |cpu: u64| {
            json!({
                "name": format!("cpu-{cpu}"),
                "attributes": {"backend": {"string": "deadline"}, "cpu": {"int": cpu}},
                "capacity": {"bandwidth": {"value": "666666", "requestPolicy": {"validRange": {"min": "1", "max": "666666"}}}},
            })
        };
        json!({
            "kind": "ResourceSlice",
            "spec": {"driver": "cpu.takt.dev", "pool": {"name": name, "generation": 1}, "devices": [core(0), core(1)]},
        })
    };
    let config = json!([{"requests": ["cpu"], "opaque": {"driver": "cpu.takt.dev", "parameters": {"runtime": "6ms", "period": "10ms"}}}]);
    let claim = |name: &str| {
        json!({
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"devices": {
                "requests": [{"name": "cpu", "exactly": {"count": 2, "capacity": {"requests": {"bandwidth": "600k"}}}}],
                "config": config,
            }},
        })
    };
    let mut held = claim("held");
    let result = |device: &str| json!({"driver": "cpu.takt.dev", "request": "cpu", "pool": "one", "device": device, "consumedCapacity": {"bandwidth": "600k"}});
    held["status"] = json!({
        "reservedFor": [{"resource": "pods", "name": "robot"}],
        "allocation": {"devices": {"results": [result("cpu-0"), result("cpu-1")]}},
        "devices": [{
            "driver": "cpu.takt.dev", "pool": "one", "device": "cpu-0",
            "data": {"threads": [{"tid": 1, "name": "arm\u{1b}[2J"}]},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Reserved", "message": ""}],
        }],
    });
    json!({"kind": "List", "items": [node("one"), node("two"), held, claim("waiting")]}).to_string()
}

#[test]
fn status_says_who_holds_what_and_where_a_claim_fits() {
    let ran = reserve_on(&["status", "--from", "-"], &cluster());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains(
            "one   deadline  cpu-0    666666    600000   66666    66666
"
        ),
        "{}",
        ran.out
    );
    for line in [
        "default/held",
        "robot",
        "Reserved",
        "default/waiting is pending: it does not fit one: BandwidthExceeded: 0 of 2 cores have 600000 free",
        "default/waiting is pending: it fits two: cpu-0,cpu-1",
    ] {
        assert!(ran.out.contains(line), "{line}: {}", ran.out);
    }
    assert!(!ran.out.contains('\u{1b}'), "{:?}", ran.out);

    let asked = ["status", "--from", "-", "--period", "10ms", "--runtime"];
    let ran = reserve_on(&[&asked[..], &["600us", "--json"]].concat(), &cluster());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let status = ran.json();
    assert_eq!(status["fits"][0]["devices"], json!(["cpu-0"]));
    assert_eq!(status["nodes"][1]["cores"][0]["free"], 666_666);
    assert_eq!(status["pending"][0]["fits"][0]["code"], "BandwidthExceeded");

    let ran = reserve_on(&[&asked[..], &["7ms"]].concat(), &cluster());
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(
        ran.out
            .contains("that claim does not fit two: DensityExceeded: "),
        "{ran:?}"
    );
    let ran = reserve_on(&[&asked[..], &["11ms"]].concat(), &cluster());
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn a_cluster_that_cannot_be_asked_is_told_with_what_could_be_done() {
    let ran = reserve(&["status", "--kubectl", "/no/such/kubectl"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("--kubectl"), "{ran:?}");
    let ran = reserve(&["status", "--kubectl", "false"]);
    assert!(ran.err.contains("false says"), "{ran:?}");
    let ran = reserve_on(&["status", "--from", "-"], "No resources found");
    assert!(ran.err.contains("kubectl get resourceslices"), "{ran:?}");
    let ran = reserve_on(&["status", "--from", "-"], "{\"items\": []}");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("is takt-node installed"), "{ran:?}");
}
