// A process's place from what its launcher set.
#include "executor/process/launch_environment.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "tests/executor/process/place_of.h"

namespace zeroplan {
namespace {

void CheckPlace(const Variables& variables, int rank, int world_size, int local_rank,
                int local_world_size, const std::string& address) {
  const auto place = PlaceOf(variables);
  REQUIRE(place.has_value());
  CHECK(place->rank == rank);
  CHECK(place->world_size == world_size);
  CHECK(place->local_rank == local_rank);
  CHECK(place->local_world_size == local_world_size);
  CHECK(place->address == address);
}

void CheckRefused(const Variables& variables, const std::string& variable,
                  const std::string& also = "") {
  try {
    PlaceOf(variables);
    FAIL("not refused");
  } catch (const Error& error) {
    const std::string message = error.what();
    CAPTURE(message);
    CHECK(error.code() == ExitCode::kUsage);
    CHECK(message.starts_with(variable + ": "));
    CHECK(message.find(also) != std::string::npos);
  }
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm = {{"SLURM_PROCID", "6"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "2"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                          {"SLURM_STEP_NODELIST", "gpu[07-08]"}};

TEST_CASE("without a launcher there is no place") {
  CHECK_FALSE(PlaceOf({}));
  // Settings alone start nothing.
  CHECK_FALSE(PlaceOf({{"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}, {"ZEROPLAN_PORT", "2"}}));
  // A batch script is not a task of it.
  CHECK_FALSE(PlaceOf({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}}));
}

TEST_CASE("one task of any launcher is a single process") {
  CHECK_FALSE(PlaceOf(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}));
  CHECK_FALSE(PlaceOf({{"OMPI_COMM_WORLD_RANK", "0"},
                       {"OMPI_COMM_WORLD_SIZE", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}));
  CHECK_FALSE(PlaceOf({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "3"}}));
}

TEST_CASE("torchrun") {
  CheckPlace(kTorchrun, 5, 8, 1, 4, "node0");
  CHECK(PlaceOf(kTorchrun)->port == 29500);
  // The agent listens there itself.
  const Variables agent = With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  CHECK(PlaceOf(agent)->port == 29501);
  CHECK(PlaceOf(With(agent, {{"ZEROPLAN_PORT", "4000"}}))->port == 4000);
}

TEST_CASE("Open MPI") {
  CheckPlace(kOpenMpi, 1, 4, 1, 4, "127.0.0.1");
  CHECK(PlaceOf(kOpenMpi)->port == kDefaultPort);
  const Variables two_hosts = With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CheckRefused(two_hosts, "MASTER_ADDR", "rank 0's host");
  CheckPlace(With(two_hosts, {{"MASTER_ADDR", "a"}}), 1, 4, 1, 2, "a");
  CheckPlace(With(two_hosts, {{"OMPI_MCA_orte_hnp_uri", "77.0;tcp://10.0.0.1,10.1.0.1:4444"}}), 1,
             4, 1, 2, "10.0.0.1,10.1.0.1");
}

TEST_CASE("Open MPI on two hosts, as versions 1.4, 4 and 5 set it") {
  const Variables rank_1 = With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const Variables rank_0 =
      With(rank_1, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  // mpirun's daemon has number 0. The second address is docker's, and every host's.
  const Variables of_4 = {
      {"OMPI_MCA_orte_hnp_uri", "3195338752.0;tcp://10.153.72.131,172.17.0.1:10000"},
      {"OMPI_MCA_orte_precondition_transports", "3a07553f5dca58b5-21784eac1fc85294"}};
  const Variables with_mpirun = {
      {"OMPI_MCA_orte_local_daemon_uri", "3195338752.0;tcp://10.153.72.131,172.17.0.1:10000"}};
  const Variables elsewhere = {
      {"OMPI_MCA_orte_local_daemon_uri", "3195338752.1;tcp://10.153.72.238,172.17.0.1:10000"},
      {"PMIX_HOSTNAME", "gpu07"}};
  CheckPlace(With(With(rank_0, of_4), with_mpirun), 0, 4, 0, 2, "10.153.72.131,172.17.0.1");
  CheckPlace(With(With(rank_1, of_4), elsewhere), 1, 4, 1, 2, "10.153.72.131,172.17.0.1");
  CHECK(PlaceOf(With(rank_1, of_4))->secret == "3a07553f5dca58b5-21784eac1fc85294");
  // As 4.1.4 of Debian 12 sets it where there is IPv6.
  CheckPlace(With(rank_1, {{"OMPI_MCA_orte_hnp_uri",
                            "1833435136.0;tcp://192.0.2.2:52889;tcp6://[fd00::2]:48653"},
                           {"PMIX_NAMESPACE", "1833435137"},
                           {"PMIX_SERVER_URI41", "1833435136.0;tcp4://127.0.0.1:35861"},
                           {"PMIX_HOSTNAME", "vm"}}),
             1, 4, 1, 2, "192.0.2.2,fd00::2");
  // mpirun on a login node: nobody is told where rank 0 is.
  CheckRefused(With(With(rank_0, of_4), elsewhere), "MASTER_ADDR", "mpirun -x MASTER_ADDR=gpu07");
  CheckPlace(With(With(With(rank_0, of_4), elsewhere), {{"MASTER_ADDR", "gpu07"}}), 0, 4, 0, 2,
             "gpu07");
  const Variables of_1 = {
      {"OMPI_MCA_orte_hnp_uri",
       "195559424.0;tcp://198.177.146.70:53997;tcp://10.10.10.4:53997;tcp://172.23.10.1:53997"}};
  CheckPlace(With(rank_1, of_1), 1, 4, 1, 2, "198.177.146.70,10.10.10.4,172.23.10.1");
  // Version 5 names mpirun's host in the namespace.
  const Variables of_5 = {{"PMIX_NAMESPACE", "prterun-login-2-4711@1"}};
  CheckPlace(With(rank_1, of_5), 1, 4, 1, 2, "login-2");
  CheckPlace(With(With(rank_0, of_5), {{"PMIX_HOSTNAME", "login-2"}}), 0, 4, 0, 2, "login-2");
  CheckRefused(With(With(rank_0, of_5), {{"PMIX_HOSTNAME", "gpu07"}}), "MASTER_ADDR", "gpu07");
  CheckRefused(With(rank_1, {{"PMIX_NAMESPACE", "prterun-"}}), "MASTER_ADDR", "rank 0's host");
}

TEST_CASE("what is too short to be a secret is none") {
  const Variables own = {{"ZEROPLAN_RANK", "1"},       {"ZEROPLAN_WORLD_SIZE", "2"},
                         {"ZEROPLAN_LOCAL_RANK", "1"}, {"ZEROPLAN_LOCAL_WORLD_SIZE", "2"},
                         {"ZEROPLAN_ADDRESS", "a"},    {"ZEROPLAN_RUN_TOKEN", "abc"}};
  CHECK(PlaceOf(own)->secret == "");
  const std::string drawn(64, 'f');
  CHECK(PlaceOf(With(own, {{"ZEROPLAN_RUN_TOKEN", drawn}}))->secret == drawn);
  CHECK(PlaceOf(kSlurm)->secret == "");
  CHECK(PlaceOf(With(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}}))->secret == "");
  CheckRefused(With(own, {{"ZEROPLAN_SECRET_FILE", "/no/such"}}), "ZEROPLAN_SECRET_FILE",
               "/no/such");
}

TEST_CASE("Slurm") {
  CheckPlace(kSlurm, 6, 8, 2, 4, "gpu07");
  CHECK(PlaceOf(kSlurm)->port == kDefaultPort + 711);
  CHECK(PlaceOf(kSlurm)->run_token == "4711.0");
  CheckPlace(With(kSlurm, {{"MASTER_ADDR", "ib0"}}), 6, 8, 2, 4, "ib0");
  // The step's tasks, where the job has more.
  CheckPlace(With(kSlurm, {{"SLURM_NTASKS", "64"}, {"SLURM_STEP_NUM_TASKS", "8"}}), 6, 8, 2, 4,
             "gpu07");
  CheckRefused(With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}}), "SLURM_STEP_TASKS_PER_NODE",
               "node 1");
  CheckRefused(With(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[1"}}), "SLURM_STEP_NODELIST",
               "MASTER_ADDR");
  // mpirun within a job decides.
  CheckPlace(With(kSlurm, kOpenMpi), 1, 4, 1, 4, "127.0.0.1");
}

TEST_CASE("zeroplan's own variables come first") {
  const Variables own = With(kTorchrun, {{"ZEROPLAN_RANK", "0"},
                                         {"ZEROPLAN_WORLD_SIZE", "2"},
                                         {"ZEROPLAN_LOCAL_RANK", "0"},
                                         {"ZEROPLAN_LOCAL_WORLD_SIZE", "2"},
                                         {"ZEROPLAN_ADDRESS", "127.0.0.1"},
                                         {"ZEROPLAN_PORT", "1234"},
                                         {"ZEROPLAN_RUN_TOKEN", "abc"},
                                         {"ZEROPLAN_LISTEN_FD", "7"}});
  CheckPlace(own, 0, 2, 0, 2, "127.0.0.1");
  CHECK(PlaceOf(own)->port == 1234);
  CHECK(PlaceOf(own)->run_token == "abc");
  CHECK(PlaceOf(own)->listen_fd == 7);
  CHECK(PlaceOf(With(own, {{"ZEROPLAN_RANK", "1"}, {"ZEROPLAN_LOCAL_RANK", "1"}}))->listen_fd ==
        -1);
}

TEST_CASE("what is half set, malformed or contradictory is refused by name") {
  CheckRefused({{"RANK", "0"}}, "WORLD_SIZE", "unset RANK");
  CheckRefused({{"WORLD_SIZE", "4"}}, "RANK", "torchrun");
  CheckRefused(With(kTorchrun, {{"RANK", "8"}}), "RANK", "WORLD_SIZE 8");
  CheckRefused(With(kTorchrun, {{"RANK", "five"}}), "RANK", "'five'");
  CheckRefused(With(kTorchrun, {{"RANK", "-1"}}), "RANK", "'-1'");
  CheckRefused(With(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK", "LOCAL_WORLD_SIZE 4");
  CheckRefused(With(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE", "WORLD_SIZE 8");
  CheckRefused(With(kTorchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR", "torchrun");
  CheckRefused(With(kTorchrun, {{"MASTER_PORT", "70000"}}), "MASTER_PORT", "'70000'");
  CheckRefused({{"OMPI_COMM_WORLD_RANK", "1"}}, "OMPI_COMM_WORLD_SIZE", "mpirun");
  CheckRefused({{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}}, "SLURM_NTASKS", "srun");
}

TEST_CASE("Slurm's lists") {
  CHECK(FirstSlurmHost("node1") == "node1");
  CHECK(FirstSlurmHost("node1,node2") == "node1");
  CHECK(FirstSlurmHost("gpu[07-09,12]-ib,login") == "gpu07-ib");
  CHECK(FirstSlurmHost("r[2,4-5]n[001-100]") == "r2n001");
  CHECK(FirstSlurmHost("") == "");
  CHECK(FirstSlurmHost("gpu[]") == "");
  CHECK(FirstSlurmHost("gpu[1") == "");
  CHECK(SlurmTasksOfNode("4(x2),1", 0) == 4);
  CHECK(SlurmTasksOfNode("4(x2),1", 1) == 4);
  CHECK(SlurmTasksOfNode("4(x2),1", 2) == 1);
  CHECK_FALSE(SlurmTasksOfNode("4(x2),1", 3));
  CHECK_FALSE(SlurmTasksOfNode("4(x2", 1));
  CHECK_FALSE(SlurmTasksOfNode("four", 0));
}

}  // namespace
}  // namespace zeroplan
