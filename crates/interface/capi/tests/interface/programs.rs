//! C and C++ programs at a real runtime.

use takt_testing::repository;

use super::support::{LANGUAGES, Language, Node, Program, ended_well, source};

#[test]
fn every_function_does_what_the_header_says() {
    let node = Node::start();
    for language in LANGUAGES {
        Program::compile(language, &[source("everything.c")]).run(&node);
    }
}

#[test]
fn wrong_arguments_are_errors_and_not_crashes() {
    let node = Node::start();
    for language in LANGUAGES {
        Program::compile(language, &[source("errors.c")]).run(&node);
    }
}

#[test]
fn waits_end_with_signals_and_by_other_threads_and_readers_are_waited_for() {
    let node = Node::start();
    for language in LANGUAGES {
        Program::compile(language, &[source("waits.c")]).run(&node);
    }
}

#[test]
fn a_forked_child_disturbs_nothing_and_may_open_its_own_session() {
    let node = Node::start();
    Program::compile(Language::C, &[source("fork.c")]).run(&node);
}

#[test]
fn a_forked_child_has_no_topics_and_no_frames_of_its_parent() {
    let node = Node::start();
    Program::compile(Language::C, &[source("fork_topics.c")]).run(&node);
}

#[test]
fn sources_and_sinks_work_in_many_threads() {
    let node = Node::start();
    Program::compile(Language::C, &[source("threads.c")]).run(&node);
}

#[test]
fn a_program_written_from_figure_6_7_runs() {
    let node = Node::start();
    for language in LANGUAGES {
        let program = Program::compile(language, &[source("figure.c"), source("figure_other.c")]);
        assert_eq!(program.run(&node), "received 10 messages, 10 by callback\n");
        // The same program without a runtime on the node.
        let alone = program
            .command()
            .env("TAKT_SOCKET", "/nonexistent/takt.sock")
            .output();
        assert_eq!(ended_well(alone), "received 10 messages, 10 by callback\n");
    }
}

#[test]
fn topics_are_published_taken_and_listed() {
    let node = Node::start();
    for language in LANGUAGES {
        Program::compile(language, &[source("topics.c")]).run(&node);
    }
}

#[test]
fn frames_are_sent_and_received() {
    let node = Node::start();
    for language in LANGUAGES {
        Program::compile(language, &[source("video.c")]).run(&node);
    }
}

#[test]
fn programs_written_from_section_6_3_4_run_with_and_without_a_daemon() {
    let node = Node::start();
    for (file, told) in [
        ("lunar.c", "received 10 messages\n"),
        ("lunar_streaming.c", "received 10 frames\n"),
    ] {
        for language in LANGUAGES {
            let program = Program::compile(language, &[source(file)]);
            assert_eq!(program.run(&node), told);
            let alone = program
                .command()
                .env("TAKT_SOCKET", "/nonexistent/takt.sock")
                .output();
            assert_eq!(ended_well(alone), told);
        }
    }
}

#[test]
fn programs_with_the_names_of_the_public_ones_run() {
    let node = Node::start();
    for generation in ["0", "1", "2"] {
        Program::compile_with(
            Language::C,
            &[source("compat.c")],
            &[("INSANE_COMPAT", generation)],
        )
        .run(&node);
    }
}

#[test]
fn the_embedded_form_is_loaded_on_wish_and_only_then() {
    let program = Program::compile(Language::C, &[source("embedded.c")]);
    let command = || {
        let mut command = program.command();
        command.env("TAKT_SOCKET", "/nonexistent/takt.sock");
        command
    };
    ended_well(command().arg("works").output());
    // Another file than the one beside the library: named, and not there.
    let text = ended_well(
        command()
            .env("TAKT_EMBEDDED_LIBRARY", "/nonexistent/embedded.so")
            .arg("fails")
            .output(),
    );
    assert!(text.contains("/nonexistent/embedded.so"), "{text}");
    // What the runtime itself says reaches the application.
    let text = ended_well(command().env("TAKT_PORT", "many").arg("fails").output());
    assert!(
        text.contains("TAKT_PORT") && text.contains("many"),
        "{text}"
    );
}

#[test]
fn the_examples_talk_to_each_other() {
    let node = Node::start();
    let example =
        |name: &str| Program::compile(Language::C, &[repository().join("examples/c").join(name)]);
    let (publish, subscribe) = (example("publish.c"), example("subscribe.c"));
    let mut subscriber = subscribe
        .command()
        .env("TAKT_SOCKET", node.socket())
        .arg("3")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the subscriber");
    let mut publisher = publish
        .command()
        .env("TAKT_SOCKET", node.socket())
        .spawn()
        .expect("the publisher");
    let mut text = String::new();
    let mut from = subscriber.stdout.take().expect("its output");
    std::io::Read::read_to_string(&mut from, &mut text).expect("its output");
    assert!(subscriber.wait().expect("the subscriber").success());
    publisher.kill().expect("ours to end");
    publisher.wait().expect("the publisher");
    assert_eq!(
        text.lines().filter(|line| line.contains("degrees")).count(),
        3,
        "{text}"
    );
}
