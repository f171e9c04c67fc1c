//! Importers: what they read, what they pass over, and what they call bad.

use muster_model::GpuModel;
use muster_twin::import::{EndState, Format, Known, Row, Trace, TraceDevices, TraceJob, model_named, rows};
use std::io::Write;

fn read(format: Format, text: &str) -> Trace {
    let mut trace = Trace::default();
    trace.add(format, text.as_bytes(), "dir/cluster07.csv").expect("the header fits");
    trace
}

fn only(trace: &Trace) -> &TraceJob {
    assert_eq!(trace.jobs.len(), 1, "{trace:?}");
    &trace.jobs[0]
}

/// Every row of `bad` must be refused with its line and a reason that holds the words beside it.
fn check_bad(format: Format, header: &str, good: &str, bad: &[(&str, &str)]) {
    for (row, words) in bad {
        let trace = read(format, &format!("{header}\n{good}\n{row}\n{good}\n"));
        assert_eq!((trace.jobs.len(), trace.bad.count), (2, 1), "{row}: {trace:?}");
        let kept = &trace.bad.kept[0];
        assert_eq!(kept.line, 3, "{row}");
        assert!(kept.why.contains(words), "{row}: {}", kept.why);
    }
}

#[test]
fn itp_rows() {
    let trace = read(Format::Itp, "job_id,submission_time,duration,num_gpu\nb,200,60,64\na,100,2.6,1\n");
    assert_eq!(trace.jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["a", "b"], "by submission");
    let job = &trace.jobs[1];
    assert_eq!((job.tenant.as_str(), job.submit_s, job.duration_s), ("cluster07", 200, 60));
    assert_eq!((job.devices, job.gpu_milli()), (TraceDevices::Whole { gpus_per_task: 64 }, 64_000));
    assert_eq!(trace.jobs[0].duration_s, 3, "rounded");
    let bad = [
        ("x,1,2", "num_gpu is empty"),
        ("x,1,2,0", "num_gpu is 0"),
        ("x,1,2,-4", "not a whole number"),
        ("x,-1,2,4", "out of range"),
        ("x,1,NaN,4", "out of range"),
        ("x,1,soon,4", "not a number of seconds"),
        ("x,1,2,999999999", "more than 100000"),
    ];
    check_bad(Format::Itp, "job_id,submission_time,duration,num_gpu", "a,100,2,1", &bad);
}

#[test]
fn philly_rows() {
    let header = "timestamp,duration,num_gpus,gpu_time,cluster";
    let job = read(Format::Philly, &format!("{header}\n2017-10-09 07:01:55,66.0,12,792.0,11cb48\n"));
    let job = only(&job);
    assert_eq!((job.tenant.as_str(), job.submit_s, job.duration_s), ("11cb48", 1_507_532_515, 66));
    assert_eq!(job.devices, TraceDevices::Whole { gpus_per_task: 12 });
    let bad = [
        ("2017-13-09 07:01:55,66.0,1,66.0,vc", "not a time"),
        (",66.0,1,66.0,vc", "not a time"),
        ("2017-10-09 07:01:55,66.0,1,66.0,", "cluster is empty"),
        ("2017-10-09 07:01:55,66.0,1.5,66.0,vc", "not a whole number"),
    ];
    check_bad(Format::Philly, header, "2017-10-09 07:01:55,66.0,1,66.0,vc", &bad);
}

#[test]
fn openb_rows() {
    let header =
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time";
    let job = read(Format::Openb, &format!("{header}\np,6000,12288,1,460,V100M16|G2|V100M16,LS,Failed,100,900,130\n"));
    let job = only(&job);
    assert_eq!((job.tenant.as_str(), job.submit_s, job.duration_s), ("openb/ls", 100, 770));
    assert_eq!((job.devices, job.recorded_wait_s), (TraceDevices::Share { milli: 460 }, Some(30)));
    assert_eq!((job.models.as_slice(), job.end), (&[GpuModel::V100_16, GpuModel::A30][..], EndState::Failed));
    assert_eq!((job.cpu_milli, job.memory_mib), (6000, 12288));

    let cpu = read(Format::Openb, &format!("{header}\np,6000,12288,0,0,,BE,Running,100,900,\n"));
    let cpu = only(&cpu);
    assert_eq!((cpu.devices, cpu.recorded_wait_s, cpu.duration_s), (TraceDevices::None, None, 800));
    let bad = [
        ("p,6000,12288,2,460,,LS,Running,100,900,130", "neither whole cards nor a share"),
        ("p,6000,12288,1,1000,H9000,LS,Running,100,900,130", "unknown GPU model \"H9000\""),
        ("p,6000,12288,1,1000,,LS,Running,100,90,95", "times go backwards"),
        ("p,0,12288,0,0,,LS,Running,100,900,130", "neither GPU nor CPU"),
        ("p,6000,12288,1,1000,,LS,Running,,900,130", "creation_time is empty"),
    ];
    check_bad(Format::Openb, header, "p,6000,12288,8,1000,,LS,Running,100,900,130", &bad);
}

#[test]
fn sacct_rows() {
    let header =
        "JobID|JobName|User|Account|Partition|Submit|Start|End|Elapsed|Timelimit|AllocTRES|ReqTRES|State|NNodes";
    let text = format!(
        "{header}\n\
         77|train|ann|nlp|gpu|2024-03-01T10:00:00|2024-03-01T10:05:00|2024-03-02T11:05:01|1-01:00:01|2-00:00:00|billing=64,cpu=65,gres/gpu:h100=16,gres/gpu=16,mem=1000G,node=2|cpu=64|CANCELLED by 1000|2\n\
         77.batch|batch|||||||||cpu=32||COMPLETED|1\n\
         78_[5-9]|sweep|ann|nlp|gpu|2024-03-01T10:00:00|Unknown|Unknown|00:00:00|UNLIMITED||cpu=1,gres/gpu=1|PENDING|1\n\
         79|odd|bob|vision|gpu|2024-03-01T10:00:00|2024-03-01T10:00:00|2024-03-01T10:01:30|01:30|10:00|cpu=8,gres/gpu:weird=3,mem=512M||TIMEOUT|2\n\
         80|cpu|||gpu|1709287200|1709287200|1709287260|00:01:00||cpu=4,mem=1G||OUT_OF_MEMORY|1\n"
    );
    let trace = read(Format::Sacct, &text);
    assert_eq!((trace.jobs.len(), trace.bad.count), (3, 0), "{trace:?}");
    assert_eq!(trace.skipped.values().copied().collect::<Vec<_>>(), [1, 1], "{:?}", trace.skipped);
    let job = &trace.jobs[0];
    assert_eq!((job.name.as_str(), job.tenant.as_str(), job.tasks), ("train", "nlp/ann", 2));
    assert_eq!((job.duration_s, job.recorded_wait_s, job.time_limit_s), (90_001, Some(300), Some(172_800)));
    assert_eq!((job.devices, job.models.as_slice()), (TraceDevices::Whole { gpus_per_task: 8 }, &[GpuModel::H100][..]));
    assert_eq!((job.cpu_milli, job.memory_mib, job.end), (32_500, 512_000, EndState::Cancelled));
    let odd = &trace.jobs[1];
    assert_eq!(
        (odd.tasks, odd.devices),
        (1, TraceDevices::Whole { gpus_per_task: 3 }),
        "3 GPUs do not divide by 2 nodes"
    );
    assert_eq!((odd.duration_s, odd.models.len(), odd.end), (90, 0, EndState::TimedOut));
    let cpu = &trace.jobs[2];
    assert_eq!((cpu.tenant.as_str(), cpu.submit_s, cpu.devices), ("no-account", 1_709_287_200, TraceDevices::None));
    let good = "1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00|2024-03-01T10:01:00|00:01:00||cpu=1||COMPLETED|1";
    let bad = [
        ("x|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00||cpu=1||COMPLETED|1", "JobID"),
        ("1|a|u|a|p|yesterday|2024-03-01T10:00:00||00:01:00||cpu=1||COMPLETED|1", "Submit"),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T09:00:00||00:01:00||cpu=1||COMPLETED|1", "before Submit"),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||an hour||cpu=1||COMPLETED|1", "Elapsed"),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00||cpu||COMPLETED|1", "has no '='"),
        (
            "1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00||gres/gpu=many||COMPLETED|1",
            "not a whole number",
        ),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00||mem=1Q||COMPLETED|1", "not an amount of memory"),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00||cpu=1||EATEN|1", "not one of sacct's"),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00||gres/gpu:a100_1g.10gb=1||COMPLETED|1", "MIG"),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00||node=1||COMPLETED|1", "neither GPU nor CPU"),
        ("1|a|u|a|p|2024-03-01T10:00:00|2024-03-01T10:00:00||00:01:00|soon|cpu=1||COMPLETED|1", "Timelimit"),
    ];
    check_bad(Format::Sacct, header, good, &bad);
}

#[test]
fn headers_that_do_not_fit_are_refused_by_name() {
    let cases = [
        (Format::Itp, "job_id,submission_time,num_gpu", "duration"),
        (Format::Philly, "timestamp,duration,num_gpus", "cluster"),
        (Format::Openb, "name,cpu_milli,memory_mib,num_gpu,gpu_milli", "creation_time"),
        (Format::Sacct, "JobID|Submit|Elapsed", "ReqTRES"),
        (Format::Sacct, "JobID|Submit|AllocTRES", "Elapsed"),
        (Format::Itp, "", "job_id"),
    ];
    for (format, header, column) in cases {
        let error = rows(format, header.as_bytes(), "f.csv").err().expect("refused").to_string();
        assert!(error.contains(column) && error.contains("f.csv"), "{error}");
    }
}

#[test]
fn gzip_is_read_as_it_is() {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    zip.write_all(b"job_id,submission_time,duration,num_gpu\na,1,2,3\n").expect("in memory");
    let bytes = zip.finish().expect("in memory");
    let mut trace = Trace::default();
    trace.add(Format::Itp, bytes.as_slice(), "c.csv.gz").expect("reads");
    assert_eq!(only(&trace).tenant, "c");
}

#[test]
fn a_cut_gzip_and_bytes_that_are_no_text_are_bad_rows_not_panics() {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    zip.write_all(b"job_id,submission_time,duration,num_gpu\na,1,2,3\nb,1,2,3\n").expect("in memory");
    let mut bytes = zip.finish().expect("in memory");
    bytes.truncate(bytes.len() - 16);
    let mut trace = Trace::default();
    trace.add(Format::Itp, bytes.as_slice(), "c.csv.gz").expect("the header is there");
    assert!(trace.bad.count >= 1, "{trace:?}");

    let text = b"job_id,submission_time,duration,num_gpu\na,1,2,3\n\xff\xfe,1,2,3\nb,1,2,3\n";
    let mut trace = Trace::default();
    trace.add(Format::Itp, &text[..], "c.csv").expect("the header is there");
    assert_eq!((trace.jobs.len(), trace.bad.count, trace.bad.kept[0].line), (2, 1, 3), "{trace:?}");
}

#[test]
fn bad_rows_are_all_counted_and_few_kept() {
    let text = format!("job_id,submission_time,duration,num_gpu\n{}", "x,y,z,w\n".repeat(1000));
    let trace = read(Format::Itp, &text);
    assert_eq!((trace.bad.count, trace.bad.kept.len()), (1000, 20));
}

#[test]
fn streams_do_not_wait_for_the_end() {
    struct Endless(Vec<u8>);
    impl std::io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                self.0.extend_from_slice(b"a,1,2,3\n");
            }
            let n = self.0.len().min(buffer.len());
            buffer[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }
    let endless = Endless(b"job_id,submission_time,duration,num_gpu\n".to_vec());
    let mut stream = rows(Format::Itp, endless, "c.csv").expect("the header fits");
    assert!(matches!(stream.nth(100_000), Some(Ok(Row::Job(_)))));
}

#[test]
fn model_names_of_slurm_sites() {
    let cases = [
        ("h100", Some(GpuModel::H100)),
        ("nvidia_a100_80gb_pcie", Some(GpuModel::A100_80)),
        ("a100-sxm4-40gb", Some(GpuModel::A100_40)),
        ("Tesla-V100-SXM2-32GB", Some(GpuModel::V100_32)),
        ("tesla_t4", Some(GpuModel::T4)),
        ("a10", Some(GpuModel::A10)),
        ("nvidia_l40s", Some(GpuModel::L40S)),
        ("a1000", None),
        ("nvidia_gh200_480gb", Some(GpuModel::GH200)),
        ("nvidia-h100-nvl", Some(GpuModel::H100_94)),
        ("gb200", None),
        ("rtx3090", None),
    ];
    for (name, model) in cases {
        assert_eq!(model_named(name), model.map_or(Known::Unknown, Known::Model), "{name}");
    }
}
