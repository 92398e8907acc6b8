// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Test} from "forge-std/Test.sol";

import {Court} from "../src/Court.sol";
import {LogAnchor} from "../src/LogAnchor.sol";
import {RewardPool} from "../src/RewardPool.sol";
import {RunRegistry} from "../src/RunRegistry.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {TestToken} from "../src/TestToken.sol";
import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {LogTree} from "./LogTree.sol";

/// @title A deployed network with a log, and what its parties sign
abstract contract Network is Test {
    string internal constant NETWORK = "testnet";
    string internal constant RUN_NAME = "run-1";
    bytes32 internal constant RUN = keccak256(bytes(RUN_NAME));
    uint256 internal constant LOG_KEY = 0x106;
    uint256 internal constant WORKER_KEY = 0x1000;
    uint256 internal constant JUDGE_KEY = 0x2000;
    uint256 internal constant JUDGES = 8;
    uint48 internal constant DELAY = 10 days;
    uint256 internal constant SUPPLY = 1e24;
    bytes32 internal constant EVIDENCE = keccak256("evidence");
    address internal constant BURNED = 0x000000000000000000000000000000000000dEaD;

    TestToken internal token;
    RunRegistry internal registry;
    LogAnchor internal logAnchor;
    Court internal court;
    StakeVault internal vault;
    RewardPool internal pool;
    LogTree internal tree;
    address internal operator = makeAddr("operator");
    uint64 internal leases;
    uint256[] internal judgeKeys;
    address[] internal judgeAddresses;

    function setUp() public virtual {
        vm.warp(1_750_000_000);
        makeJudges();
        deployNetwork();
    }

    function deployNetwork() internal {
        // By their compiled code, not `new`: a court inside every test would take minutes to compile.
        token = TestToken(deployCode("TestToken.sol", abi.encode("Prime", "PRM", SUPPLY)));
        registry = RunRegistry(deployCode("RunRegistry.sol", abi.encode(NETWORK, operator, DELAY)));
        logAnchor = LogAnchor(deployCode("LogAnchor.sol", abi.encode(registry)));
        court = Court(deployCode("Court.sol", abi.encode(token, registry, logAnchor)));
        vault = StakeVault(court.vault());
        pool = RewardPool(court.pool());
        tree = new LogTree();
        vm.prank(operator);
        registry.createRun(RUN_NAME, vm.addr(LOG_KEY), terms());
    }

    function terms() internal pure returns (IRunRegistry.Terms memory) {
        return IRunRegistry.Terms({
            stakeMin: 1000,
            slashAmount: 600,
            slashPerDay: 1500,
            validatorSlash: 400,
            appealBond: 50,
            epochBudget: 10_000,
            epochTime: 1 hours,
            payoutDelay: 1 days,
            slashWindow: 4 days,
            appealWindow: 3 days,
            judgementWindow: 3 days,
            judgeAge: 0,
            quorum: 3,
            slashToPool: true,
            bountyShare: 2000
        });
    }

    // --- Stake ---

    function give(address account, uint256 amount) internal {
        require(token.transfer(account, amount), "the test token always transfers");
    }

    function stake(address node, uint256 amount) internal {
        give(node, amount);
        vm.prank(node);
        token.approve(address(vault), amount);
        vm.prank(node);
        vault.deposit(node, amount);
    }

    function stakeJudges() internal {
        for (uint256 i = 0; i < JUDGES; i++) {
            stake(judgeAt(i), 1000);
        }
    }

    /// @dev Sorted by address, as verdicts must be.
    function makeJudges() internal {
        for (uint256 i = 0; i < JUDGES; i++) {
            uint256 key = JUDGE_KEY + i;
            judgeKeys.push(key);
            judgeAddresses.push(vm.addr(key));
            for (uint256 j = i; j > 0 && judgeAddresses[j - 1] > judgeAddresses[j]; j--) {
                (judgeKeys[j], judgeKeys[j - 1]) = (judgeKeys[j - 1], judgeKeys[j]);
                (judgeAddresses[j], judgeAddresses[j - 1]) = (judgeAddresses[j - 1], judgeAddresses[j]);
            }
        }
    }

    function judgeAt(uint256 place) internal view returns (address) {
        return judgeAddresses[place];
    }

    // --- What parties sign ---

    function sign(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    function domainOf(address contract_) internal view returns (bytes32) {
        bytes32 kind = keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
        return keccak256(abi.encode(kind, keccak256("prime-swarm"), keccak256("1"), block.chainid, contract_));
    }

    function digestOf(address contract_, bytes32 structHash) internal view returns (bytes32) {
        return keccak256(abi.encodePacked(hex"1901", domainOf(contract_), structHash));
    }

    function receiptOf(uint256 workerKey) internal returns (ICourt.Receipt memory receipt) {
        receipt = ICourt.Receipt(7, leases++, vm.addr(workerKey), keccak256("c"), keccak256("f"), keccak256("r"), "");
        receipt.signature = sign(workerKey, digestOf(address(court), court.submissionOf(RUN, receipt)));
    }

    function verdictOf(uint256 key, bytes32 submission, uint64 outcome) internal view returns (ICourt.Verdict memory) {
        address validator = vm.addr(key);
        bytes32 names = keccak256(bytes(NETWORK));
        bytes32 hash =
            keccak256(abi.encode(court.VERDICT_TYPEHASH(), names, RUN, submission, validator, outcome, EVIDENCE));
        return ICourt.Verdict(validator, outcome, EVIDENCE, sign(key, digestOf(address(court), hash)));
    }

    /// @dev Verdicts of `count` judges from a place on.
    function verdictsOf(bytes32 submission, uint64 outcome, uint256 first, uint256 count)
        internal
        view
        returns (ICourt.Verdict[] memory verdicts)
    {
        verdicts = new ICourt.Verdict[](count);
        for (uint256 i = 0; i < count; i++) {
            verdicts[i] = verdictOf(judgeKeys[first + i], submission, outcome);
        }
    }

    function judgesFrom(uint256 first, uint256 count) internal view returns (address[] memory judges) {
        judges = new address[](2 * count);
        for (uint256 i = 0; i < count; i++) {
            judges[i] = judges[count + i] = judgeAt(first + i);
        }
    }

    // --- The log ---

    function headSignature(uint64 size, bytes32 root) internal view returns (bytes memory) {
        return sign(LOG_KEY, logAnchor.headDigest(size, root));
    }

    /// @dev Anchor all entries so far.
    function anchorLog() internal {
        uint64 size = tree.size();
        uint64 latest = logAnchor.latestSize(RUN);
        bytes32 root = tree.rootOf(size);
        bytes32 lastRoot = latest == 0 ? bytes32(0) : tree.rootOf(latest);
        bytes32[] memory proof = latest == 0 ? new bytes32[](0) : tree.consistency(latest, size);
        logAnchor.anchor(RUN, size, root, lastRoot, proof, headSignature(size, root));
    }

    /// @dev A record as the log writes it: at_ms, then the frame with its signature and payload. See docs/protocol/envelope.md.
    function recordOf(bytes memory head, bytes memory body, string memory kind) internal view returns (bytes memory) {
        bytes memory end = abi.encodePacked(
            hex"ad657870697265735f61745f6d73cf0000019000000000", // expires_at_ms
            hex"ac6973737565645f61745f6d73cf0000018fffffffff", // issued_at_ms
            hex"a46b696e64",
            uint8(0xa0 + bytes(kind).length),
            kind,
            hex"a76e6574776f726ba7",
            NETWORK,
            hex"a372756ea5",
            RUN_NAME,
            hex"a673656e646572c414",
            operator,
            hex"a873657175656e636507a776657273696f6e01"
        );
        return bytes.concat(hex"82a561745f6d73cf0000018fffffffffa56672616d65c5013d", head, body, end);
    }

    /// @dev An entry in the log, anchored, ready for the court.
    function logged(bytes memory head, bytes memory body, string memory kind)
        internal
        returns (ICourt.LoggedEntry memory entry)
    {
        tree.add(bytes.concat("another entry ", bytes32(uint256(leases))));
        entry.leaf = recordOf(head, body, kind);
        entry.offset = uint32(25 + head.length);
        entry.issuedAtMs = 0x18fffffffff;
        entry.expiresAtMs = 0x19000000000;
        entry.index = tree.add(entry.leaf);
        tree.add("one more");
        entry.size = tree.size();
        anchorLog();
        entry.proof = tree.inclusion(entry.index, entry.size);
    }

    function loggedProposal(bytes32 submission) internal returns (ICourt.LoggedEntry memory) {
        bytes memory body =
            bytes.concat(hex"a865766964656e6365c420", EVIDENCE, hex"aa7375626d697373696f6ec420", submission);
        return logged(hex"83ab616d6f756e745f6e616e6fcd0258", body, "SlashProposed");
    }

    /// @dev The log's end of a slash, executed without a bounty.
    function loggedEnd(bytes32 submission, string memory kind) internal returns (ICourt.LoggedEntry memory) {
        bool isExecuted = keccak256(bytes(kind)) == keccak256("SlashExecuted");
        if (isExecuted) return loggedExecution(submission, address(0));
        return logged("signature", bytes.concat(hex"81aa7375626d697373696f6ec420", submission), kind);
    }

    function loggedExecution(bytes32 submission, address bountyTo) internal returns (ICourt.LoggedEntry memory) {
        bytes memory finder = bountyTo == address(0) ? bytes(hex"c0") : abi.encodePacked(hex"c414", bountyTo);
        bytes memory body =
            bytes.concat(hex"82a9626f756e74795f746f", finder, hex"aa7375626d697373696f6ec420", submission);
        return logged("signature", body, "SlashExecuted");
    }

    /// @dev A penalty below 128 nano.
    function loggedPenalty(bytes32 submission, address validator, uint8 penaltyNano)
        internal
        returns (ICourt.LoggedEntry memory)
    {
        bytes memory penalty = abi.encodePacked(hex"83ac70656e616c74795f6e616e6f", penaltyNano);
        bytes memory body = abi.encodePacked(
            penalty, hex"aa7375626d697373696f6ec420", submission, hex"a976616c696461746f72c414", validator
        );
        return logged("signature", body, "ValidatorScored");
    }

    /// @dev Everything a proposal needs, made and sent. The first three judges say fraudulent.
    function propose(uint256 workerKey) internal returns (bytes32 submission) {
        ICourt.Receipt memory receipt = receiptOf(workerKey);
        submission = court.submissionOf(RUN, receipt);
        ICourt.LoggedEntry memory entry = loggedProposal(submission);
        return court.propose(RUN, receipt, verdictsOf(submission, 2, 0, 3), EVIDENCE, entry);
    }

    function appeal(bytes32 submission, address by) internal {
        give(by, terms().appealBond);
        vm.prank(by);
        token.approve(address(court), terms().appealBond);
        vm.prank(by);
        court.appeal(submission);
    }
}
