//! Functions of libraries for OpenMP that are about tasks, by their names.

use super::one_step::{Names, names};
use object::read::ReadCache;
use refrain_analysis::{
    Calls,
    Tasking::{self, *},
};
use refrain_trace::Module;
use std::fs::File;

/// Those of GCC's library.
const GCC: [(&str, Tasking); 28] = [
    ("GOMP_task", Creates),
    ("GOMP_taskloop", CreatesAll),
    ("GOMP_taskloop_ull", CreatesAll),
    ("GOMP_taskwait", Waits),
    ("GOMP_taskwait_depend", WaitsFor),
    ("GOMP_taskgroup_start", Groups),
    ("GOMP_taskgroup_end", EndsGroup),
    ("GOMP_taskyield", Yields),
    ("GOMP_barrier", Barrier),
    ("GOMP_barrier_cancel", Barrier),
    ("GOMP_loop_end", Barrier),
    ("GOMP_loop_end_cancel", Barrier),
    ("GOMP_sections_start", Sections),
    ("GOMP_sections2_start", Sections),
    ("GOMP_sections_next", Sections),
    ("GOMP_sections_end_nowait", EndsSections),
    ("GOMP_sections_end", Barrier),
    ("GOMP_sections_end_cancel", Barrier),
    ("GOMP_single_copy_start", BarrierUnlessZero),
    ("GOMP_single_copy_end", Barrier),
    ("GOMP_workshare_task_reduction_unregister", Barrier),
    ("GOMP_parallel", Team),
    ("GOMP_parallel_sections", Team),
    ("GOMP_parallel_reductions", Team),
    ("GOMP_parallel_loop_static", Team),
    ("GOMP_parallel_loop_dynamic", Team),
    ("GOMP_parallel_loop_guided", Team),
    ("GOMP_parallel_loop_runtime", Team),
];

/// Those of LLVM's.
const LLVM: [(&str, Tasking); 18] = [
    ("__kmpc_omp_task_alloc", Allocates),
    ("__kmpc_omp_task", Starts),
    ("__kmpc_omp_task_parts", Starts),
    ("__kmpc_omp_task_with_deps", StartsBehind),
    ("__kmpc_taskloop", StartsAll),
    ("__kmpc_taskloop_5", StartsAll),
    ("__kmpc_omp_task_begin_if0", Begins),
    ("__kmpc_omp_task_complete_if0", Ends),
    ("__kmpc_omp_taskwait", Waits),
    ("__kmpc_omp_wait_deps", WaitsForRecords),
    ("__kmpc_taskgroup", Groups),
    ("__kmpc_end_taskgroup", EndsGroup),
    ("__kmpc_omp_taskyield", Yields),
    ("__kmpc_barrier", AnyBarrier),
    ("__kmpc_cancel_barrier", AnyBarrier),
    ("__kmpc_end_reduce", AnyBarrier),
    ("__kmpc_copyprivate", AnyBarrier),
    ("__kmpc_fork_call", Team),
];

/// What both have.
const BOTH: [(&str, Tasking); 2] = [("omp_get_thread_num", Asks), ("omp_fulfill_event", Fulfills)];

/// What a module is for tasks.
#[derive(Default)]
pub struct Library {
    /// Its functions, by their addresses.
    pub functions: Vec<(u64, Tasking)>,
    /// How it calls the bodies of tasks, if it does.
    pub calls: Option<Calls>,
}

/// What is known of a module by the names of its functions.
pub fn library(module: &Module) -> Library {
    let Some(exported) = names(module, Names::Exported) else { return Library::default() };
    let find = |all: &[(&str, Tasking)], name: &str| {
        // The schedule of a loop does not matter.
        let name = name.replace("_loop_nonmonotonic_", "_loop_");
        let name = name.replace("_loop_maybe_nonmonotonic_", "_loop_");
        all.iter().find(|(other, _)| *other == name).map(|&(_, what)| what)
    };
    let own = |all: &[(&str, Tasking)]| -> Vec<(u64, Tasking)> {
        exported.iter().filter_map(|(at, name)| Some((*at, find(all, name)?))).collect()
    };
    // LLVM's library has functions by GCC's names, too.
    let (mut functions, calls) = match own(&LLVM) {
        llvm if !llvm.is_empty() => (llvm, Calls::Task),
        _ => (own(&GCC), Calls::Data),
    };
    if functions.is_empty() {
        return Library::default();
    }
    functions.extend(own(&BOTH));
    Library { functions, calls: Some(calls) }
}

/// How much of each thread's memory a module takes for what is local to it.
pub fn local(module: &Module) -> u64 {
    let size = || -> Option<u64> {
        if !std::fs::metadata(&module.path).ok()?.is_file() {
            return None;
        }
        let data = ReadCache::new(File::open(&module.path).ok()?);
        let elf = object::read::elf::ElfFile64::<object::Endianness, _>::parse(&data).ok()?;
        use object::read::elf::ProgramHeader;
        let endian = elf.endian();
        let tls =
            elf.elf_program_headers().iter().find(|it| it.p_type(endian) == object::elf::PT_TLS)?;
        Some(tls.p_memsz(endian).saturating_add(tls.p_align(endian)))
    };
    size().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_once() {
        let all = || GCC.iter().chain(&LLVM).chain(&BOTH);
        let names: std::collections::BTreeSet<&str> = all().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), all().count());
    }
}
