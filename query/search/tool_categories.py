"""Reference objects of tools, used to normalise a query's similarity scores (cohort normalisation).

Short queries are similar to everything and whole tasks to nothing, so a cosine means little by itself.
Speaker verification has the same problem and compares with a cohort of other speakers. Source: Higgins, Bahler and
Porter, "Speaker Verification Using Randomized Phrase Prompting", Digital Signal Processing 1, 1991.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.text.embedding import Embedder

# Every query is about equally far from the others.
NEAREST = 3

_vectors_by_embedder: WeakKeyDictionary[Embedder, NDArray[np.float32]] = WeakKeyDictionary()
_lock = Lock()


def category_similarity(query: NDArray[np.float32], embedder: Embedder) -> float:
    """Return the mean cosine of a query's vector, of unit length, to the nearest texts of the tool categories.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    cosines = category_vectors(embedder) @ query
    cosines.sort()
    return float(cosines[-NEAREST:].mean())


def category_vectors(embedder: Embedder) -> NDArray[np.float32]:
    """Return the texts' vectors, shape (texts, dimension), unit rows; an embedder embeds them once.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    with _lock:
        if embedder not in _vectors_by_embedder:
            vectors = embedder.passages(passages())
            vectors.flags.writeable = False  # all callers share them
            _vectors_by_embedder[embedder] = vectors
        return _vectors_by_embedder[embedder]


def passages() -> list[str]:
    """Return the texts that represent the categories: one for each object, then one for each category."""
    listed = ((category, objects.split(", ")) for category, objects in CATEGORIES.items())
    of_objects = [f"create a new {each} in {category}" for category, objects in listed for each in objects]
    return [*of_objects, *(f"{category}: {objects}" for category, objects in CATEGORIES.items())]


CATEGORIES = {
    "calendar": "event, meeting, reminder, attendee, free slot, schedule, invitation, time zone",
    "email": "message, inbox, draft, attachment, thread, label, signature, spam folder",
    "files": "file, folder, path, permission, archive, symbolic link, disk usage, checksum",
    "git": "commit, branch, tag, diff, repository, merge, remote, blame",
    "issue tracker": "issue, sprint, backlog, comment, assignee, milestone, epic, board",
    "database": "table, query, index, row, schema, transaction, view, backup",
    "cloud": "virtual machine, bucket, load balancer, region, snapshot, instance, security group, subnet",
    "containers": "container, image, volume, network, log, registry, pod, deployment",
    "monitoring": "metric, alert, dashboard, trace, incident, log line, uptime, threshold",
    "weather": "forecast, temperature, wind, rain, storm warning, humidity, air quality, sunrise",
    "maps": "address, route, distance, place, coordinates, traffic, elevation, public transport",
    "travel": "flight, hotel, booking, itinerary, passenger, train ticket, rental car, visa",
    "finance": "stock price, portfolio, dividend, balance sheet, exchange rate, option, earnings, bond",
    "crypto": "token, wallet, transaction, block, gas fee, smart contract, exchange, staking reward",
    "payments": "invoice, payment, refund, subscription, customer, card, payout, dispute",
    "accounting": "ledger, expense, budget, tax, receipt, cost centre, salary, purchase order",
    "sales": "lead, deal, contact, pipeline, account, quote, opportunity, call note",
    "marketing": "campaign, audience, advertisement, keyword, landing page, newsletter, conversion, click",
    "social media": "post, follower, hashtag, profile, like, direct message, trend, story",
    "video": "video, transcript, channel, playlist, caption, clip, thumbnail, stream",
    "music": "song, album, artist, playlist, lyrics, chord, concert, podcast",
    "images": "image, photo, background, filter, caption, thumbnail, logo, colour palette",
    "audio": "recording, speech, voice, transcript, noise, sample rate, sound effect, language",
    "documents": "document, page, paragraph, heading, template, footnote, revision, table of contents",
    "spreadsheets": "sheet, cell, formula, chart, column, pivot table, range, workbook",
    "slides": "slide, presentation, speaker note, layout, theme, animation, bullet, title",
    "pdf": "page, form field, signature, watermark, text, annotation, bookmark, metadata",
    "notes": "note, notebook, tag, checklist, link, daily entry, highlight, idea",
    "tasks": "task, project, due date, priority, subtask, list, habit, goal",
    "chat": "message, channel, user, reaction, thread, mention, group, emoji",
    "web": "page, link, form, screenshot, cookie, button, redirect, site map",
    "search engine": "result, news article, image result, snippet, answer, keyword, domain, ranking",
    "papers": "paper, author, citation, abstract, journal, preprint, reference, conference",
    "encyclopedia": "article, summary, category, fact, biography, section, revision, link",
    "medicine": "patient, drug, diagnosis, clinical trial, symptom, dose, side effect, vaccine",
    "biology": "gene, protein, sequence, species, pathway, mutation, cell line, genome",
    "chemistry": "molecule, reaction, compound, formula, solvent, boiling point, element, spectrum",
    "physics": "particle, orbit, energy, wave, simulation, force, unit, constant",
    "mathematics": "equation, integral, matrix, prime number, proof, derivative, graph, probability",
    "statistics": "regression, sample, distribution, correlation, confidence interval, hypothesis, time series",
    "machine learning": "model, dataset, training run, prediction, embedding, hyperparameter, experiment, label",
    "text": "sentence, word, summary, translation, sentiment, keyword, spelling, entity",
    "code": "function, test, dependency, lint error, stack trace, refactoring, class, package",
    "build": "pipeline, job, artifact, release, workflow, runner, cache, version",
    "security": "vulnerability, password, certificate, secret, firewall rule, malware, port, access token",
    "identity": "user, role, group, session, permission, login, policy, organisation",
    "network": "host, port, packet, domain name, latency, proxy, bandwidth, address",
    "operating system": "process, service, registry key, environment variable, driver, window, clipboard, package",
    "smart home": "light, thermostat, camera, door lock, sensor, scene, speaker, blind",
    "vehicles": "car, battery, charging station, trip, tyre, engine, parking space, fuel price",
    "food": "recipe, ingredient, restaurant, menu, calorie, meal plan, grocery list, wine",
    "sport": "match, team, player, score, league, workout, race, ranking",
    "games": "game, level, character, achievement, map, server, item, leaderboard",
    "films": "film, actor, review, series, episode, director, trailer, rating",
    "books": "book, chapter, author, library, quote, publisher, review, edition",
    "shopping": "product, price, order, cart, seller, review, discount, stock",
    "logistics": "shipment, parcel, warehouse, tracking number, carrier, delivery, customs form, pallet",
    "real estate": "property, rent, mortgage, listing, neighbourhood, agent, viewing, floor plan",
    "law": "contract, clause, court case, statute, trademark, patent, licence, regulation",
    "government": "law, election, tax form, permit, census, public record, grant, agency",
    "education": "course, student, lesson, quiz, grade, assignment, school, certificate",
    "jobs": "job, candidate, interview, résumé, salary, vacancy, skill, employer",
    "people": "employee, team, holiday, payroll, review, onboarding, contract, absence",
    "support": "ticket, customer, reply, knowledge article, complaint, satisfaction survey, queue, escalation",
    "design": "frame, component, font, colour, icon, prototype, style, layer",
    "3d": "mesh, scene, material, camera, texture, print, joint, render",
    "geography": "country, city, river, mountain, population, border, satellite image, earthquake",
    "astronomy": "planet, star, asteroid, telescope, eclipse, galaxy, satellite, launch",
    "time": "time zone, duration, date, timer, calendar week, holiday, deadline, stopwatch",
    "memory": "fact, conversation, entity, relation, observation, session, preference, summary",
    "agents": "agent, tool, prompt, plan, step, workflow, approval, run",
    "farming": "crop, soil, field, harvest, tractor, irrigation, seed, livestock",
    "energy": "power plant, meter, solar panel, tariff, grid, consumption, battery, emission",
    "religion": "verse, prayer, scripture, festival, hymn, saint, temple, sermon",
    "family": "birthday, gift, child, recipe, photo album, baby name, pet, garden",
}
