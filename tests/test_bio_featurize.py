"""Features on disk are RDKit's own, row for row, and say what made them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from bio_molecules import smiles_of
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rdkit")

import rdkit
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from trainer_core.bio import featurize
from trainer_core.bio.assays import scaffold_library
from trainer_core.bio.featurize import MorganSettings, features_match, featurize_smiles
from trainer_core.bio.featurize import open_features, unpack_fingerprints
from trainer_core.bio.smiles_tokens import EOS_ID, PAD_ID, SPECIAL_TOKENS, SmilesVocabulary
from trainer_core.bio.smiles_tokens import open_smiles_tokens, split_smiles, write_smiles_tokens
from trainer_core.settings import UserError

SMILES = [*smiles_of(), *scaffold_library(5, 3).smiles]


class TestFingerprints:
    @pytest.mark.parametrize("chunk_rows", [1, 7, 4096])
    @pytest.mark.parametrize("radius", [2, 3])
    def test_bits_are_rdkits_row_for_row(
        self, chunk_rows: int, radius: int, tmp_path: Path
    ) -> None:
        """Off by a row, every molecule is trained on with its neighbor's label."""
        wanted = MorganSettings(radius=radius, fp_size=512)
        made = featurize_smiles(
            iter(SMILES), len(SMILES), tmp_path / "bits.npy", wanted, chunk_rows=chunk_rows
        )
        generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=512)
        expected = [generator.GetFingerprintAsNumPy(Chem.MolFromSmiles(s)) for s in SMILES]
        assert made.rows().shape == (len(SMILES), 64)
        found = unpack_fingerprints(made.rows()[:], 512)
        assert found.dtype == np.float32
        assert np.array_equal(found, np.stack(expected))

    def test_counts_are_rdkits_up_to_255(self, tmp_path: Path) -> None:
        """A count that wraps around at 256 turns a long chain into a short one."""
        chain = "C" * 400
        settings = MorganSettings(kind="counts", fp_size=128)
        names = [*SMILES, chain]
        made = featurize_smiles(names, len(names), tmp_path / "counts.npy", settings)
        generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=128)
        expected = [generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(s)) for s in names]
        assert np.array_equal(made.rows(), np.minimum(np.stack(expected), 255))
        assert made.rows().max() == 255

    def test_another_binary_form_of_rdkits_is_refused(self) -> None:
        """Read as if it were today's, it would be bits of no molecule."""
        settings = MorganSettings(fp_size=128)
        molecule = Chem.MolFromSmiles("CCO")
        known = settings.generator().GetCountFingerprint(molecule).ToBinary()
        assert settings.encode([known, known]).sum() > 0
        longer = MorganSettings().generator().GetCountFingerprint(molecule).ToBinary()
        for other in (b"\2" + known[1:], known + known[:4], longer):
            with pytest.raises(UserError, match="binary form that this code doesn't know"):
                settings.encode([known, other])

    def test_chirality_is_a_setting(self, tmp_path: Path) -> None:
        """Without it, mirror images are one row, whatever the table says."""
        pair = ["C[C@@H](C(=O)O)N", "C[C@H](C(=O)O)N"]
        for is_chiral in (False, True):
            settings = MorganSettings(use_chirality=is_chiral)
            made = featurize_smiles(pair, 2, tmp_path / f"{is_chiral}.npy", settings)
            assert np.array_equal(*made.rows()) is not is_chiral

    def test_memory_is_one_chunk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A corpus is read as it is written: SMILES of 30 TB fit in no list."""
        ahead = []

        def reading() -> Iterator[str]:
            for row, text in enumerate(SMILES):
                ahead.append(row - written[0])
                yield text

        written = [0]
        original = np.lib.format.open_memmap

        def counted(*arguments: object, **named: object) -> object:
            output = original(*arguments, **named)  # type: ignore[arg-type]

            class Counting(np.ndarray):  # type: ignore[type-arg]
                def __setitem__(self, rows: slice, values: object) -> None:
                    super().__setitem__(rows, values)
                    written[0] = rows.stop

                def flush(self) -> None:
                    output.flush()

            return output.view(Counting)

        monkeypatch.setattr(np.lib.format, "open_memmap", counted)
        featurize_smiles(reading(), len(SMILES), tmp_path / "x.npy", chunk_rows=4)
        assert max(ahead) <= 4


class TestManifest:
    def test_it_says_what_made_the_features(self, tmp_path: Path) -> None:
        """A fingerprint without its radius and RDKit's version can't be made again."""
        path = tmp_path / "bits.npy"
        made = featurize_smiles(SMILES, len(SMILES), path, MorganSettings(radius=3))
        facts = json.loads((tmp_path / "bits.npy.json").read_text())
        assert facts["rdkit"] == rdkit.__version__
        assert facts["settings"]["radius"] == 3
        assert facts["version"] == featurize.FEATURES_VERSION
        assert facts["digest"] == made.digest
        assert open_features(path) == made
        assert features_match(made, SMILES)
        assert not features_match(made, SMILES[::-1])

    def test_the_digest_is_of_input_settings_version_and_rdkit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Equal digests of different features let a run resume on other data."""
        digests = set()
        variants = [(SMILES, {}), (SMILES[::-1], {}), (SMILES, {"radius": 1})]
        for place, (smiles, changes) in enumerate(variants):
            path = tmp_path / f"{place}.npy"
            settings = MorganSettings(**changes)  # type: ignore[arg-type]
            digests.add(featurize_smiles(smiles, len(smiles), path, settings).digest)
        made = open_features(tmp_path / "0.npy")
        monkeypatch.setattr(featurize, "FEATURES_VERSION", "morgan-2")
        digests.add(made.digest)
        with pytest.raises(UserError, match="made by morgan-1, or changed since"):
            open_features(tmp_path / "0.npy")
        monkeypatch.undo()
        monkeypatch.setattr(rdkit, "__version__", "2020.03")
        again = featurize_smiles(SMILES, len(SMILES), tmp_path / "again.npy")
        digests.add(again.digest)
        assert len(digests) == 5

    def test_a_bad_row_is_named_and_leaves_nothing_that_looks_finished(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Zeros in place of a molecule are a molecule that every model predicts alike."""
        names = ["CCO", "C1CC", "CCN"]
        path = tmp_path / "bits.npy"
        with pytest.raises(UserError, match=r"bits.npy, row 2: 'C1CC' can't be read by RDKit"):
            featurize_smiles(names, 3, path)
        with pytest.raises(UserError, match="the features were never finished"):
            open_features(path)
        made = featurize_smiles(names, 3, path, on_bad="skip")
        assert made.skipped == open_features(path).skipped == (2,)
        assert made.rows()[1].sum() == 0 < made.rows()[2].sum()
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize("num_rows", [2, 4])
    def test_a_wrong_number_of_rows_is_refused(self, num_rows: int, tmp_path: Path) -> None:
        """Features and labels of different lengths belong to different molecules."""
        with pytest.raises(UserError, match=f"but num_rows={num_rows}"):
            featurize_smiles(["CCO", "CCN", "CCC"], num_rows, tmp_path / "bits.npy")
        assert not (tmp_path / "bits.npy").exists()

    def test_features_are_never_written_over_and_a_cut_file_is_refused(
        self, tmp_path: Path
    ) -> None:
        """A run that has mapped the file would read another molecule's features."""
        path = tmp_path / "bits.npy"
        featurize_smiles(SMILES, len(SMILES), path)
        with pytest.raises(UserError, match="exists, and a run may be reading it"):
            featurize_smiles(SMILES, len(SMILES), path)
        path.write_bytes(path.read_bytes()[:500])
        with pytest.raises(UserError, match="500 bytes, too few for 30 rows"):
            open_features(path)


def spellings() -> list[str]:
    """Molecules as RDKit writes them, and as people do."""
    extra = ["[13CH4]", "C[C@@H](F)Cl", "F/C=C\\F", "[Na+].[Cl-]", "C%10CCCCC%10", "*C"]
    extra += [
        "[nH]1cccc1",
        "c1ccc2c(c1)[se]cc2",
        "BrCCl",
        "[O-][N+](=O)c1ccccc1",
        "C$C",
        "c1:c:c:c:c:c:1",
        "~C",
    ]
    return [*SMILES, *extra]


class TestTokens:
    @pytest.mark.parametrize("smiles", spellings())
    def test_joined_tokens_are_the_smiles(self, smiles: str) -> None:
        """A character that is lost is another molecule: chlorine becomes carbon."""
        assert "".join(split_smiles(smiles)) == smiles

    @settings(max_examples=60)
    @given(st.sampled_from(range(len(SMILES))), st.integers(0, 2**31 - 1), st.booleans())
    def test_any_way_to_write_a_molecule_survives_the_round_trip(
        self, place: int, seed: int, is_explicit: bool
    ) -> None:
        """Ids are all that a model ever sees of it."""
        molecule = Chem.MolFromSmiles(SMILES[place])
        text = Chem.MolToRandomSmilesVect(molecule, 1, seed, allHsExplicit=is_explicit)[0]
        vocabulary = SmilesVocabulary.from_smiles([text])
        ids = vocabulary.encode(text)
        assert ids.dtype == np.uint16
        assert vocabulary.decode(ids) == text
        assert vocabulary.decode([*ids, PAD_ID, PAD_ID]) == text

    def test_two_letter_atoms_and_brackets_are_one_token(self) -> None:
        """Boron and a stray r: the token for bromine must come before the one for boron."""
        text = "Brc1ccc(Cl)c[nH]1.[C@@H]%12"
        tokens = split_smiles(text)
        assert tokens[0] == "Br"
        assert {"Cl", "[nH]", "[C@@H]", "%12", "."} <= set(tokens)
        assert not {"r", "l", "%"} & set(tokens)

    @pytest.mark.parametrize(
        ("text", "found"),
        [("CCX", "'X' at character 3"), ("C C", "' ' at character 2"), ("C[", "'['")],
    )
    def test_what_is_no_token_is_refused_with_its_place(self, text: str, found: str) -> None:
        """Left out, it would be a valid SMILES of another molecule."""
        with pytest.raises(UserError, match=re.escape(found)):
            split_smiles(text)

    def test_the_vocabulary_does_not_depend_on_the_order_of_the_corpus(self) -> None:
        """Two ranks that build their own must give an atom the same id."""
        first = SmilesVocabulary.from_smiles(SMILES)
        assert first.tokens == SmilesVocabulary.from_smiles(SMILES[::-1]).tokens
        assert first.tokens[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS
        assert first.tokens[len(SPECIAL_TOKENS)] in "Cc"
        assert len(first) == len(first.ids)

    def test_an_unknown_token_is_refused_or_marked(self) -> None:
        """Silent <unk> tokens are a vocabulary from another corpus, found after a month."""
        vocabulary = SmilesVocabulary.from_smiles(["CCO"])
        with pytest.raises(UserError, match=r"'CBr': no id for 'Br'"):
            vocabulary.encode("CBr")
        assert vocabulary.decode(vocabulary.encode("CBr", allow_unknown=True)) == "C<unk>"

    def test_more_tokens_than_uint16_can_number_are_refused(self) -> None:
        """Id 65536 is id 0 on disk: padding."""
        assert len(SmilesVocabulary([str(x) for x in range(65531)])) == 65536
        for tokens in ([str(x) for x in range(65532)], ["C", "C"]):
            with pytest.raises(UserError, match="ids are uint16"):
                SmilesVocabulary(tokens)

    def test_a_corpus_on_disk_is_read_back_as_int64(self, tmp_path: Path) -> None:
        """An embedding refuses uint16, and a reader that reinterprets it reads other ids."""
        vocabulary = SmilesVocabulary.from_smiles(SMILES)
        made = write_smiles_tokens(iter(SMILES), vocabulary, tmp_path / "tokens")
        read = open_smiles_tokens(tmp_path / "tokens")
        assert len(made) == len(read) == len(SMILES)
        assert read.ids.dtype == np.uint16
        for place, text in enumerate(SMILES):
            ids = read.molecule(place)
            assert ids.dtype == np.int64
            assert vocabulary.decode(ids) == text
            assert read.lengths()[place] == len(ids) == len(split_smiles(text)) + 2
        assert ids[-1] == EOS_ID
        table = torch.nn.Embedding(len(vocabulary), 4)
        assert table(torch.from_numpy(ids)).shape == (len(ids), 4)
        listed = (tmp_path / "tokens" / "vocabulary.txt").read_text().splitlines()
        assert tuple(listed) == vocabulary.tokens

    def test_a_corpus_that_is_bad_cut_or_there_already_is_refused(self, tmp_path: Path) -> None:
        """Half a corpus trains as well as a whole one, and nobody notices."""
        vocabulary = SmilesVocabulary.from_smiles(SMILES)
        with pytest.raises(UserError, match="row 2: 'CX'"):
            write_smiles_tokens(["CC", "CX"], vocabulary, tmp_path / "bad")
        assert not (tmp_path / "bad").exists()
        with pytest.raises(UserError, match="don't belong together"):
            open_smiles_tokens(tmp_path / "bad")
        write_smiles_tokens(SMILES, vocabulary, tmp_path / "tokens")
        with pytest.raises(UserError, match="never written over"):
            write_smiles_tokens(SMILES, vocabulary, tmp_path / "tokens")
        ids = tmp_path / "tokens" / "ids.bin"
        ids.write_bytes(ids.read_bytes()[:-2])
        with pytest.raises(UserError, match="don't belong together"):
            open_smiles_tokens(tmp_path / "tokens")

    def test_a_corpus_without_molecules_is_empty_and_no_crash(self, tmp_path: Path) -> None:
        """A rank's share of a small corpus can be empty; mapping an empty file fails."""
        made = write_smiles_tokens([], SmilesVocabulary(["C"]), tmp_path / "none")
        assert (len(made), made.lengths().tolist()) == (0, [])
